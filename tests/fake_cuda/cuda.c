/* A stand-in for libcudart and libcublas, with a device whose time is simulated.
 *
 * Written from the documented API, for bench/cuda_by_hand.py: it answers only what that asks. The
 * device works behind the host: a launch costs the host LAUNCH seconds and makes the device busy for
 * as long as its work takes at the rates below; whoever waits, waits. So a call sequence that reads
 * a time too early, forgets to wait, or times the launches alone gets wrong numbers or an error.
 * Whatever is not as the headers want it (types, sizes, pointers, kinds, streams) is an error.
 *
 *     FAKE_CUDA_FAIL=cudaMalloc     that call returns 2
 *
 *     gcc -shared -fPIC -o libfake.so cuda.c */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400, NOT_READY = 600 };
enum { BLAS_OK = 0, BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7 };
enum { DEVICE = 1, PINNED, EVENT, STREAM, HANDLE };

static const double LAUNCH = 2e-6, HBM = 2000e9, UP = 25e9, DOWN = 20e9;
static double now, busy; /* the host's clock; when the device will have done all it was given */

static struct { char *at; size_t size; int kind; double time; } things[64];
static void *blas_stream;

double fake_now(void) { return now; }
double fake_rate(int compute) { return compute == 70 ? 20e12 : compute == 77 ? 400e12 : 100e12; }

int fake_alive(void)
{
    int alive = 0;
    for (int i = 0; i < 64; i++)
        alive += things[i].at != NULL;
    return alive;
}

static int fails(const char *name)
{
    const char *wanted = getenv("FAKE_CUDA_FAIL");
    return wanted && !strcmp(wanted, name);
}

static int make(void **out, size_t size, int kind)
{
    for (int i = 0; i < 64; i++)
        if (!things[i].at) {
            things[i].at = malloc(size);
            things[i].size = size;
            things[i].kind = kind;
            things[i].time = -1;
            *out = things[i].at;
            return OK;
        }
    return OUT_OF_MEMORY;
}

static int find(const void *at, size_t size, int kind)
{
    for (int i = 0; i < 64; i++)
        if (things[i].at && things[i].kind == kind && things[i].at == at && size <= things[i].size)
            return i;
    return -1;
}

static int drop(void *at, int kind)
{
    int i = find(at, 0, kind);
    if (i < 0)
        return INVALID_HANDLE;
    free(things[i].at);
    things[i].at = NULL;
    return OK;
}

static void launch(double seconds)
{
    now += LAUNCH;
    busy = (busy > now ? busy : now) + seconds;
}

const char *cudaGetErrorString(int code) { return code == 2 ? "out of memory" : "a fault"; }
int cudaSetDevice(int device) { return device ? INVALID_VALUE : OK; }
int cudaRuntimeGetVersion(int *out) { *out = 12080; return OK; }
int cudaDriverGetVersion(int *out) { *out = 12090; return OK; }
int cudaMalloc(void **out, size_t size)
{
    return fails("cudaMalloc") ? OUT_OF_MEMORY : make(out, size, DEVICE);
}
int cudaFree(void *at) { return drop(at, DEVICE); }
int cudaMallocHost(void **out, size_t size) { return make(out, size, PINNED); }
int cudaFreeHost(void *at) { return drop(at, PINNED); }
int cudaStreamCreateWithFlags(void **out, unsigned flags)
{
    return flags == 1 ? make(out, 1, STREAM) : INVALID_VALUE;
}
int cudaStreamDestroy(void *at) { return drop(at, STREAM); }
int cudaEventCreate(void **out) { return make(out, 1, EVENT); }
int cudaEventDestroy(void *at) { return drop(at, EVENT); }
int cudaDeviceSynchronize(void) { now = busy > now ? busy : now; return OK; }

int cudaStreamSynchronize(void *stream)
{
    return find(stream, 0, STREAM) < 0 ? INVALID_HANDLE : cudaDeviceSynchronize();
}

int cudaEventRecord(void *event, void *stream)
{
    int i = find(event, 0, EVENT);
    if (i < 0 || find(stream, 0, STREAM) < 0)
        return INVALID_HANDLE;
    now += LAUNCH;
    things[i].time = busy > now ? busy : now;
    return OK;
}

int cudaEventSynchronize(void *event)
{
    int i = find(event, 0, EVENT);
    if (i < 0 || things[i].time < 0)
        return INVALID_HANDLE;
    now = things[i].time > now ? things[i].time : now;
    return OK;
}

int cudaEventElapsedTime(float *out, void *start, void *stop)
{
    int i = find(start, 0, EVENT), j = find(stop, 0, EVENT);
    if (i < 0 || j < 0 || things[i].time < 0 || things[j].time < 0)
        return INVALID_HANDLE;
    if (things[j].time > now)
        return NOT_READY;
    *out = (float)((things[j].time - things[i].time) * 1000);
    return OK;
}

int cudaMemset(void *at, int byte, size_t size)
{
    if (find(at, size, DEVICE) < 0)
        return INVALID_VALUE;
    memset(at, byte, size);
    launch(size / HBM);
    return OK;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream)
{
    static const int from_kind[] = {0, PINNED, DEVICE, DEVICE};
    static const int to_kind[] = {0, DEVICE, PINNED, DEVICE};
    static const double *rates[] = {0, &UP, &DOWN, &HBM};
    if (kind < 1 || kind > 3 || find(stream, 0, STREAM) < 0 || to == from)
        return INVALID_VALUE;
    if (find(from, size, from_kind[kind]) < 0 || find(to, size, to_kind[kind]) < 0)
        return INVALID_VALUE;
    if (fails("cudaMemcpyAsync"))
        return INVALID_VALUE;
    launch((kind == 3 ? 2.0 : 1.0) * size / *rates[kind]);
    return OK;
}

int cublasCreate_v2(void **out) { return make(out, 1, HANDLE); }
int cublasDestroy_v2(void *at) { return drop(at, HANDLE) ? BLAS_NOT_INITIALIZED : BLAS_OK; }
int cublasSetStream_v2(void *handle, void *stream)
{
    if (find(handle, 0, HANDLE) < 0 || find(stream, 0, STREAM) < 0)
        return BLAS_NOT_INITIALIZED;
    blas_stream = stream;
    return BLAS_OK;
}
int cublasGetProperty(int kind, int *out) { *out = 12 - kind; return BLAS_OK; }

/* The size of a type, or 0: CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF. */
static size_t bytes_of(int type)
{
    return type == 0 ? 4 : type == 1 ? 8 : type == 2 || type == 14 ? 2 : 0;
}

int cublasGemmEx(void *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                 const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                 const void *beta, void *c, int c_type, int ldc, int compute, int algorithm)
{
    size_t bytes = bytes_of(a_type), cells = (size_t)m * n;
    int is_double = compute == 70;
    double one = is_double ? *(const double *)alpha : *(const float *)alpha;
    double zero = is_double ? *(const double *)beta : *(const float *)beta;
    if (find(handle, 0, HANDLE) < 0 || !blas_stream)
        return BLAS_NOT_INITIALIZED;
    if (ta || tb || m != n || n != k || lda != n || ldb != n || ldc != n || algorithm != -1)
        return BLAS_INVALID_VALUE;
    if (!bytes || a_type != b_type || a_type != c_type || one != 1 || zero != 0)
        return BLAS_INVALID_VALUE;
    if ((compute != 68 && compute != 70 && compute != 77) || is_double != (a_type == 1))
        return BLAS_INVALID_VALUE;
    if (compute == 77 && a_type != 0)
        return BLAS_INVALID_VALUE;
    if (find(a, cells * bytes, DEVICE) < 0 || find(b, cells * bytes, DEVICE) < 0
        || find(c, cells * bytes, DEVICE) < 0 || c == a || c == b)
        return BLAS_INVALID_VALUE;
    launch(2.0 * m * n * k / fake_rate(compute));
    return BLAS_OK;
}
