/* A stand-in for libnvidia-ml.so.1, so that the real pynvml and verify/device/state.py can be tested
 * without a GPU.
 *
 * Written from NVML's documented API; it answers only what the two of them ask. Settings come from
 * the text file that $FAKE_DRIVER names, one "key = value" a line, read at each call:
 *
 *     driver = 550.54.15      nvml = 12.550.54.15      cuda = 12040      count = 2
 *     gpu.N.name = NVIDIA L4  gpu.N.uuid = GPU-...     gpu.N.capability = 8.9
 *     gpu.N.memory = 24152899584                       gpu.N.mig = 1
 *     gpu.N.used = 1073741824                          bytes
 *     gpu.N.processes = 4711:1048576,4712:-1           pid and bytes; -1: not available
 *     gpu.N.utilization, memory_utilization, temperature, power (mW), power_limit (mW), persistence,
 *     compute_mode, throttle (the mask), ecc, retired_pending, pcie_generation, pcie_generation_max,
 *     pcie_width, pcie_width_max, pcie_generation_card, pcie_replays, slowdown, margin, display,
 *     virtualization, addressing, sram_threshold
 *     gpu.N.field.ID = -2     nvmlDeviceGetFieldValues; gpu.N.field.ID.S for a scope S above 0
 *     gpu.N.banks = 640 0 0 0 0   the histogram of spare rows
 *     gpu.N.fans = 2, fan.F   the number of fans, and the speed of each
 *     gpu.N.license = 1 0 TEXT   a licensable feature: enabled, licensed, its info
 *     excluded = 1, excluded.0 = 00000000:b3:00.0   GPUs that the driver was told not to use
 *     confidential = 1        confidential computing
 *     gpu.N.bus_id = 00000000:17:00.0
 *     gpu.N.clock.T, clock_max.T                       T: 1 SM, 2 memory
 *     gpu.N.ecc.C.E           C: 0 corrected, 1 uncorrected; E: 0 volatile, 1 aggregate
 *     gpu.N.ecc.C.E.L         the same of one location
 *     gpu.N.retired.C = 2     pages, by cause          gpu.N.remapped = 1 0 0 0
 *     gpu.N.fabric = 3 0 0 0  state, status, health mask, summary
 *     gpu.N.mig.M.uuid        and name, memory, used   gpu.N.mig_slots = 7
 *     gpu.N.nvlink.L.state    and version, error.K, remote (a bus id), remote_type
 *     topology.I.J = 10       p2p.I.J.CAP = 0          process_stride = 32
 *     error.FUNCTION = 18     every call of FUNCTION returns that nvmlReturn_t
 *     error.FUNCTION.N = 15   the same, for GPU N only
 *     sleep.FUNCTION = 60     every call of FUNCTION takes so many seconds
 *
 * A GPU's key that is not set answers NVML_ERROR_NOT_SUPPORTED (3).
 * Each call is appended to "<file>.log", so that a test can see that NVML was shut down.
 *
 *     gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    VERSION_MISMATCH = 25
};

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { pci_t pci; char uuid[80]; } excluded_t;
typedef struct {
    unsigned code, licensed;
    char info[128], product[128];
    unsigned enabled, year;
    unsigned short rest[5];
    unsigned char expiry;
} licensed_t;
typedef struct { int supported; unsigned count; licensed_t features[3]; } licenses_t;
typedef struct { unsigned version; int margin; } margin_t;
typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type, code;
    union { int i; long long ll; } value;
} field_t;
typedef struct {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
} fabric_t;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
} fabric2_t;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
    unsigned char summary;
} fabric3_t;
typedef struct { unsigned max, high, partial, low, none; } histogram_t;
typedef struct { unsigned version, value; } addressing_t;
typedef struct { unsigned version; u64 counters[11]; unsigned threshold; } sram_t;
typedef struct { unsigned environment, feature, devtools; } confidential_t;

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
    snprintf(key, sizeof key, "sleep.%s", function);
    if (setting(key, value, sizeof value))
        sleep((unsigned)atoi(value));
    snprintf(key, sizeof key, "error.%s.%d", function, gpu);
    if (setting(key, value, sizeof value))
        return atoi(value);
    snprintf(key, sizeof key, "error.%s", function);
    return setting(key, value, sizeof value) ? atoi(value) : SUCCESS;
}

enum { MIG_HANDLES = 1000 };

/* A text answer: of the system (gpu -1) or of one GPU. */
static int text(const char *function, int gpu, const char *name, char *out, unsigned size)
{
    char key[128], value[512];
    int error = forced(function, gpu);
    if (error)
        return error;
    if (gpu < 0)
        snprintf(key, sizeof key, "%s", name);
    else if (gpu >= MIG_HANDLES)
        snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", gpu / MIG_HANDLES - 1, gpu % MIG_HANDLES, name);
    else
        snprintf(key, sizeof key, "gpu.%d.%s", gpu, name);
    if (!setting(key, value, sizeof value))
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* Handles are 1 + the index: never NULL. MIG device M of GPU N has index (N + 1) * 1000 + M. */
static int index_of(void *device) { return (int)(size_t)device - 1; }

/* A number: of the system (gpu -1) or of one GPU. */
static int number(const char *function, int gpu, const char *name, u64 *out)
{
    char value[64] = "0";
    int error = text(function, gpu, name, value, sizeof value);
    if (!error)
        *out = strtoull(value, NULL, 0);
    return error;
}

static int small(const char *function, void *device, const char *name, unsigned *out)
{
    u64 value = 0;
    int error = number(function, index_of(device), name, &value);
    if (!error)
        *out = (unsigned)value;
    return error;
}

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

static int memory(const char *function, void *device, u64 *total, u64 *used)
{
    *used = 0;
    int error = number(function, index_of(device), "memory", total);
    if (!error)
        number(function, index_of(device), "used", used);
    return error;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *out)
{
    memset(out, 0, sizeof *out);
    int error = memory("nvmlDeviceGetMemoryInfo", device, &out->total, &out->used);
    out->free = out->total - out->used;
    return error;
}

/* Functions that store one number behind their last argument. */
#define NUMBER(function, name) \
    int function(void *device, unsigned *out) { return small(#function, device, name, out); }

NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_card")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetDisplayActive, "display")
NUMBER(nvmlDeviceGetNumFans, "fans")
NUMBER(nvmlDeviceGetFanSpeed, "fan.0")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization")

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out)
{
    return sensor ? INVALID_ARGUMENT
                  : small("nvmlDeviceGetTemperature", device, "temperature", out);
}

int nvmlDeviceGetTemperatureThreshold(void *device, unsigned which, unsigned *out)
{
    const char *function = "nvmlDeviceGetTemperatureThreshold";
    return which == 1 ? small(function, device, "slowdown", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *out)
{
    const char *function = "nvmlDeviceGetUtilizationRates";
    int error = small(function, device, "utilization", &out->gpu);
    return error ? error : small(function, device, "memory_utilization", &out->memory);
}

static int clock_of(const char *function, void *device, const char *name, unsigned type, unsigned *out)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%u", name, type);
    return small(function, device, key, out);
}

int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *out)
{
    return clock_of("nvmlDeviceGetClockInfo", device, "clock", type, out);
}

int nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *out)
{
    return clock_of("nvmlDeviceGetMaxClockInfo", device, "clock_max", type, out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *out)
{
    return number("nvmlDeviceGetCurrentClocksThrottleReasons", index_of(device), "throttle", out);
}

int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending)
{
    int error = small("nvmlDeviceGetEccMode", device, "ecc", current);
    *pending = *current;
    return error;
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *out)
{
    char key[64];
    snprintf(key, sizeof key, "ecc.%u.%u", type, counter);
    return number("nvmlDeviceGetTotalEccErrors", index_of(device), key, out);
}

int nvmlDeviceGetMemoryErrorCounter(void *device, unsigned type, unsigned counter, unsigned place,
                                    u64 *out)
{
    char key[64];
    snprintf(key, sizeof key, "ecc.%u.%u.%u", type, counter, place);
    return number("nvmlDeviceGetMemoryErrorCounter", index_of(device), key, out);
}

int nvmlDeviceGetRetiredPages(void *device, unsigned cause, unsigned *count, u64 *pages)
{
    char key[64];
    unsigned have = 0, room = pages ? *count : 0;
    snprintf(key, sizeof key, "retired.%u", cause);
    int error = small("nvmlDeviceGetRetiredPages", device, key, &have);
    if (error)
        return error;
    for (unsigned i = 0; i < have && i < room; i++)
        pages[i] = 4096ull * (i + 1);
    *count = have;
    return have > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static int pci(const char *function, int gpu, const char *key, pci_t *out, int with_long)
{
    char bus_id[32];
    int error = text(function, gpu, key, bus_id, sizeof bus_id);
    if (error)
        return error;
    memset(out, 0, sizeof *out);
    if (sscanf(bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return INVALID_ARGUMENT;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
             out->bus & 0xff, out->device & 0xff);
    if (with_long)
        strcpy(out->bus_id, bus_id);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v2(void *device, pci_t *out)
{
    return pci("nvmlDeviceGetPciInfo_v2", index_of(device), "bus_id", out, 0);
}

/* Writes entries of this length; where it is 32, behind them what drivers 535.43 to 535.86 add. */
static int processes(const char *function, void *device, unsigned *count, char *out, unsigned stride)
{
    char list[512], *next = list;
    unsigned have = 0, room = out ? *count : 0;
    int error = text(function, index_of(device), "processes", list, sizeof list);
    if (error)
        return error;
    for (char *entry; (entry = strsep(&next, ",")) && *entry; have++) {
        unsigned pid = 0, instances[2] = { 0xffffffff, 0xffffffff };
        u64 fields[2] = { 0, 0 };
        long long used = 0;
        sscanf(entry, "%u:%lld", &pid, &used);
        fields[0] = (u64)used;
        if (have >= room)
            continue;
        char *at = out + have * stride;
        memcpy(at, &pid, 4);
        memcpy(at + 8, &fields[0], 8);
        if (stride >= 24)
            memcpy(at + 16, instances, 8);
        if (stride >= 32)
            memcpy(at + 24, &fields[1], 8);
    }
    *count = have;
    return have > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, char *out)
{
    return processes("nvmlDeviceGetComputeRunningProcesses", device, count, out, 16);
}

static int link_number(const char *function, void *device, unsigned link, const char *name, u64 *out)
{
    char key[64];
    snprintf(key, sizeof key, "nvlink.%u.%s", link, name);
    return number(function, index_of(device), key, out);
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out)
{
    u64 value = 0;
    if (link >= 18)
        return INVALID_ARGUMENT;
    int error = link_number("nvmlDeviceGetNvLinkState", device, link, "state", &value);
    *out = (unsigned)value;
    return error;
}

int nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *out)
{
    u64 value = 0;
    int error = link_number("nvmlDeviceGetNvLinkVersion", device, link, "version", &value);
    *out = (unsigned)value;
    return error;
}

int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, unsigned counter, u64 *out)
{
    char key[64];
    snprintf(key, sizeof key, "error.%u", counter);
    return link_number("nvmlDeviceGetNvLinkErrorCounter", device, link, key, out);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_t *out)
{
    char key[64];
    snprintf(key, sizeof key, "nvlink.%u.remote", link);
    return pci("nvmlDeviceGetNvLinkRemotePciInfo_v2", index_of(device), key, out, 1);
}

static int pair(const char *function, const char *name, void *one, void *two, int cap, unsigned *out)
{
    char key[64];
    u64 value = 0;
    if (cap < 0)
        snprintf(key, sizeof key, "%s.%d.%d", name, index_of(one), index_of(two));
    else
        snprintf(key, sizeof key, "%s.%d.%d.%d", name, index_of(one), index_of(two), cap);
    int error = number(function, -1, key, &value);
    *out = (unsigned)value;
    return error;
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *two, unsigned *out)
{
    return pair("nvmlDeviceGetTopologyCommonAncestor", "topology", one, two, -1, out);
}

int nvmlDeviceGetP2PStatus(void *one, void *two, unsigned capability, unsigned *out)
{
    return pair("nvmlDeviceGetP2PStatus", "p2p", one, two, (int)capability, out);
}

#ifdef ERROR_TEXTS /* without it pynvml is on its own for the codes it has no text for */
const char *nvmlErrorString(int code)
{
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "An error";
    }
}
#endif

#ifndef OLD_DRIVER /* what old drivers lack */
int nvmlDeviceGetMemoryInfo_v2(void *device, memory2_t *out)
{
    if (out->version != (sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    int error = memory("nvmlDeviceGetMemoryInfo_v2", device, &out->total, &out->used);
    out->reserved = 0;
    out->free = out->total - out->used;
    return error;
}

int nvmlDeviceGetPciInfo_v3(void *device, pci_t *out)
{
    return pci("nvmlDeviceGetPciInfo_v3", index_of(device), "bus_id", out, 1);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, char *out)
{
    return processes("nvmlDeviceGetComputeRunningProcesses_v2", device, count, out, 24);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, char *out)
{
    u64 stride = 24;
    number("nvmlDeviceGetComputeRunningProcesses_v3", -1, "process_stride", &stride);
    return processes("nvmlDeviceGetComputeRunningProcesses_v3", device, count, out, (unsigned)stride);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *out)
{
    return number("nvmlDeviceGetCurrentClocksEventReasons", index_of(device), "throttle", out);
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed)
{
    char value[64];
    int error = text("nvmlDeviceGetRemappedRows", index_of(device), "remapped", value, sizeof value);
    if (error)
        return error;
    int read = sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return read == 4 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetFanSpeed_v2(void *device, unsigned fan, unsigned *out)
{
    return clock_of("nvmlDeviceGetFanSpeed_v2", device, "fan", fan, out);
}

int nvmlDeviceGetGridLicensableFeatures_v4(void *device, licenses_t *out)
{
    char value[128];
    const char *function = "nvmlDeviceGetGridLicensableFeatures";
    int error = text(function, index_of(device), "license", value, sizeof value);
    if (error)
        return error;
    licensed_t *feature = &out->features[0];
    out->supported = out->count = 1;
    sscanf(value, "%u %u %127[^\n]", &feature->enabled, &feature->licensed, feature->info);
    return SUCCESS;
}

int nvmlGetExcludedDeviceCount(unsigned *out)
{
    u64 count = 0;
    int error = number("nvmlGetExcludedDeviceCount", -1, "excluded", &count);
    *out = (unsigned)count;
    return error;
}

int nvmlGetExcludedDeviceInfoByIndex(unsigned index, excluded_t *out)
{
    char key[32];
    snprintf(key, sizeof key, "excluded.%u", index);
    return text("nvmlGetExcludedDeviceInfoByIndex", -1, key, out->pci.bus_id, sizeof out->pci.bus_id);
}

int nvmlDeviceGetMarginTemperature(void *device, margin_t *out)
{
    unsigned value = 0;
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    int error = small("nvmlDeviceGetMarginTemperature", device, "margin", &value);
    out->margin = (int)value;
    return error;
}

int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields)
{
    int error = forced("nvmlDeviceGetFieldValues", index_of(device));
    for (int i = 0; i < count && !error; i++) {
        char value[64], name[64];
        int length = snprintf(name, sizeof name, "field.%u", fields[i].id);
        if (fields[i].scope)
            snprintf(name + length, sizeof name - (size_t)length, ".%u", fields[i].scope);
        int known = !text("fields", index_of(device), name, value, sizeof value);
        fields[i].code = known ? SUCCESS : NOT_SUPPORTED;
        fields[i].type = 5; /* NVML_VALUE_TYPE_SIGNED_INT */
        fields[i].value.ll = 0;
        fields[i].value.i = known ? atoi(value) : 0;
    }
    return error;
}

int nvmlDeviceGetRowRemapperHistogram(void *device, histogram_t *out)
{
    char value[64];
    const char *function = "nvmlDeviceGetRowRemapperHistogram";
    int error = text(function, index_of(device), "banks", value, sizeof value);
    if (error)
        return error;
    int read = sscanf(value, "%u %u %u %u %u", &out->max, &out->high, &out->partial, &out->low, &out->none);
    return read == 5 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetAddressingMode(void *device, addressing_t *out)
{
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    return small("nvmlDeviceGetAddressingMode", device, "addressing", &out->value);
}

int nvmlDeviceGetSramEccErrorStatus(void *device, sram_t *out)
{
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    return small("nvmlDeviceGetSramEccErrorStatus", device, "sram_threshold", &out->threshold);
}

int nvmlDeviceValidateInforom(void *device)
{
    return forced("nvmlDeviceValidateInforom", index_of(device));
}

int nvmlSystemGetConfComputeState(confidential_t *out)
{
    char value[64];
    out->feature = setting("confidential", value, sizeof value) ? (unsigned)atoi(value) : 0;
    return forced("nvmlSystemGetConfComputeState", -1);
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out)
{
    return small("nvmlDeviceGetMaxMigDeviceCount", device, "mig_slots", out);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out)
{
    char key[64], value[128];
    int gpu = index_of(device), error = forced("nvmlDeviceGetMigDeviceHandleByIndex", gpu);
    snprintf(key, sizeof key, "gpu.%d.mig.%u.uuid", gpu, index);
    if (error || !setting(key, value, sizeof value))
        return error ? error : NOT_FOUND;
    *out = (void *)(size_t)((gpu + 1) * MIG_HANDLES + (int)index + 1);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *out)
{
    u64 value = 255;
    const char *function = "nvmlDeviceGetNvLinkRemoteDeviceType";
    int error = link_number(function, device, link, "remote_type", &value);
    *out = (unsigned)value;
    return error;
}

static int fabric(const char *function, void *device, unsigned *status, unsigned char *state,
                  unsigned *health, unsigned char *summary)
{
    char value[64];
    unsigned read = 0, last = 0;
    int error = text(function, index_of(device), "fabric", value, sizeof value);
    if (!error)
        sscanf(value, "%u %u %i %u", &read, status, (int *)health, &last);
    *state = (unsigned char)read;
    *summary = (unsigned char)last;
    return error;
}

int nvmlDeviceGetGpuFabricInfo(void *device, fabric_t *out)
{
    unsigned health = 0;
    unsigned char summary;
    const char *function = "nvmlDeviceGetGpuFabricInfo";
    return fabric(function, device, &out->status, &out->state, &health, &summary);
}

#ifndef NO_FABRIC_V /* drivers before 535 */
int nvmlDeviceGetGpuFabricInfoV(void *device, fabric3_t *out)
{
    unsigned char summary, *place = &summary;
    const char *function = "nvmlDeviceGetGpuFabricInfoV";
#ifndef NO_FABRIC_3 /* drivers before 580 */
    if (out->version == (sizeof *out | 3u << 24))
        place = &out->summary;
    else
#endif
    if (out->version != (sizeof(fabric2_t) | 2u << 24))
        return VERSION_MISMATCH;
    return fabric(function, device, &out->status, &out->state, &out->health, place);
}
#endif
#endif
