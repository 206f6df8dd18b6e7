/* A stand-in for libnvidia-ml.so.1, so that the real pynvml can be tested without a GPU.
 *
 * Written from NVML's documented API; it answers only what provision/host/nvml.py asks. Settings
 * come from the text file that $FAKE_DRIVER names, one "key = value" a line, read at each call:
 *
 *     driver = 550.54.15      nvml = 12.550.54.15      cuda = 12040      count = 2
 *     gpu.N.name = NVIDIA L4  gpu.N.uuid = GPU-...     gpu.N.capability = 8.9
 *     gpu.N.memory = 24152899584                       gpu.N.mig = 1
 *     error.FUNCTION = 18     every call of FUNCTION returns that nvmlReturn_t
 *     error.FUNCTION.N = 15   the same, for GPU N only
 *
 * A GPU's key that is not set answers NVML_ERROR_NOT_SUPPORTED (3).
 * Each call is appended to "<file>.log", so that a test can see that NVML was shut down.
 *
 *     gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned long long total, free, used; } memory_t;

/* The value of a key, in a buffer of the caller's; NULL if it is not set. */
static char *setting(const char *key, char *value, size_t size)
{
    const char *path = getenv("FAKE_DRIVER");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], *found = NULL;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *equals = strstr(line, " = ");
        if (!equals || strncmp(line, key, equals - line) || key[equals - line])
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", equals + 3);
        found = value;
    }
    if (file)
        fclose(file);
    return found;
}

/* Logs the call and says which error it must return; gpu -1: a call that concerns no GPU. */
static int forced(const char *function, int gpu)
{
    char key[256], value[64];
    if (getenv("FAKE_DRIVER")) {
        snprintf(key, sizeof key, "%s.log", getenv("FAKE_DRIVER"));
        FILE *log = fopen(key, "a");
        if (log) {
            fprintf(log, "%s %d\n", function, gpu);
            fclose(log);
        }
    }
    snprintf(key, sizeof key, "error.%s.%d", function, gpu);
    if (setting(key, value, sizeof value))
        return atoi(value);
    snprintf(key, sizeof key, "error.%s", function);
    return setting(key, value, sizeof value) ? atoi(value) : SUCCESS;
}

/* A text answer: of the system (gpu -1) or of one GPU. */
static int text(const char *function, int gpu, const char *name, char *out, unsigned size)
{
    char key[128], value[512];
    int error = forced(function, gpu);
    if (error)
        return error;
    if (gpu < 0)
        snprintf(key, sizeof key, "%s", name);
    else
        snprintf(key, sizeof key, "gpu.%d.%s", gpu, name);
    if (!setting(key, value, sizeof value))
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* Handles are 1 + the index: never NULL. */
static int index_of(void *device) { return (int)(size_t)device - 1; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return forced("nvmlInit", -1); }
int nvmlInit_v2(void) { return forced("nvmlInit", -1); }
int nvmlShutdown(void) { return forced("nvmlShutdown", -1); }

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return text("nvmlSystemGetDriverVersion", -1, "driver", out, size);
}

int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    return text("nvmlSystemGetNVMLVersion", -1, "nvml", out, size);
}

static int cuda(const char *function, int *out)
{
    char value[64] = "0";
    int error = text(function, -1, "cuda", value, sizeof value);
    *out = atoi(value);
    return error;
}

int nvmlSystemGetCudaDriverVersion(int *out) { return cuda("nvmlSystemGetCudaDriverVersion", out); }

#ifndef OLD_DRIVER /* a symbol that is truly not there: NVML_ERROR_FUNCTION_NOT_FOUND in pynvml */
int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    return cuda("nvmlSystemGetCudaDriverVersion_v2", out);
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    char value[64] = "0";
    int error = text("nvmlDeviceGetMigMode", index_of(device), "mig", value, sizeof value);
    *current = *pending = atoi(value);
    return error;
}
#endif

int nvmlDeviceGetCount_v2(unsigned *out)
{
    char value[64] = "0";
    int error = text("nvmlDeviceGetCount", -1, "count", value, sizeof value);
    *out = atoi(value);
    return error;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    char value[64];
    if (!setting("count", value, sizeof value) || index >= (unsigned)atoi(value))
        return INVALID_ARGUMENT;
    *out = (void *)(size_t)(index + 1);
    return forced("nvmlDeviceGetHandleByIndex", index);
}

int nvmlDeviceGetName(void *device, char *out, unsigned size)
{
    return text("nvmlDeviceGetName", index_of(device), "name", out, size);
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned size)
{
    return text("nvmlDeviceGetUUID", index_of(device), "uuid", out, size);
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    char value[64];
    const char *function = "nvmlDeviceGetCudaComputeCapability";
    int error = text(function, index_of(device), "capability", value, sizeof value);
    if (error)
        return error;
    return sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *out)
{
    char value[64] = "0";
    int error = text("nvmlDeviceGetMemoryInfo", index_of(device), "memory", value, sizeof value);
    memset(out, 0, sizeof *out);
    out->total = strtoull(value, NULL, 10);
    return error;
}
