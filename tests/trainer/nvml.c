/* NVML's and libcuda's interface, as far as the trainer asks it (NVIDIA, nvml.h and cuda.h), over
   the devices of the file that NVML_MACHINE names. One source, two libraries. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct gpu {
    char name[96], uuid[96];
    int major, minor;
    unsigned long long total, used;
    int error;     /* what every question about the device answers; 4: its handle is refused */
    int mig;       /* -1: not supported, 0: off, 1: on */
    int slices;    /* the GPUs that follow it are not counted: they are its slices */
    int memory;    /* 0: good; 1: no spare rows are left; 2: a page of a double-bit error waits to be
                      retired; 3: one of single-bit errors */
};

static char driver[64];
static int init, cuda, cuinit, count;
static struct gpu gpus[16];

__attribute__((constructor)) static void read_machine(void) {
    const char *path = getenv("NVML_MACHINE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    if (fscanf(file, "%d %d %d %d %63s", &init, &cuda, &cuinit, &count, driver) == 5)
        for (struct gpu *it = gpus; it < gpus + 16; it++)
            if (fscanf(file, " \"%95[^\"]\" \"%95[^\"]\" %d %d %llu %llu %d %d %d %d", it->name,
                       it->uuid, &it->major, &it->minor, &it->total, &it->used, &it->error,
                       &it->mig, &it->slices, &it->memory) != 10) break;
    if (*driver == '-') *driver = 0; /* it tells no version */
    fclose(file);
}

struct memory { unsigned long long total, free, used; };
typedef const struct gpu *device;

static int copy(char *to, unsigned size, const char *text) {
    return snprintf(to, size, "%s", text) < (int)size ? 0 : 7;
}

int nvmlInit_v2(void) { return init; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return init; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return copy(to, size, driver); }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = count; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    int at = 0;
    for (; index; index--) at += 1 + gpus[at].slices;
    if (gpus[at].error == 4 || gpus[at].error == 15) return gpus[at].error;
    *found = &gpus[at];
    return 0;
}

int nvmlDeviceGetName(device it, char *to, unsigned size) {
    return it->error ? it->error : copy(to, size, it->name);
}

int nvmlDeviceGetUUID(device it, char *to, unsigned size) {
    return it->error ? it->error : copy(to, size, it->uuid);
}

int nvmlDeviceGetCudaComputeCapability(device it, int *major, int *minor) {
    *major = it->major;
    *minor = it->minor;
    return it->error;
}

int nvmlDeviceGetMemoryInfo(device it, struct memory *found) {
    if (it->mig == 1) return 4;
    found->total = it->total;
    found->used = it->used;
    found->free = it->total - it->used;
    return it->error;
}

struct rates { unsigned gpu, memory; };
/* it is as busy as it is full */
int nvmlDeviceGetUtilizationRates(device it, struct rates *found) {
    found->gpu = found->memory = it->total ? 100 * it->used / it->total : 0;
    return it->error;
}

int nvmlDeviceGetMigMode(device it, unsigned *now, unsigned *later) {
    if (it->mig < 0) return 3;
    *now = *later = it->mig;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(device it, unsigned *most) { *most = it->mig ? 7 : 0; return 0; }

int nvmlDeviceGetMigDeviceHandleByIndex(device it, unsigned index, device *found) {
    if ((int)index >= it->slices) return 6;
    *found = it + 1 + index;
    return 0;
}

/* Ampere and later remap rows, older GPUs retire pages: the other question is not supported (3) */
int nvmlDeviceGetRemappedRows(device it, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failure) {
    if (it->major < 8) return 3;
    *corrected = *uncorrected = *pending = 1;
    *failure = it->memory == 1;
    return 0;
}

int nvmlDeviceGetRetiredPagesPendingStatus(device it, unsigned *pending) {
    if (it->major >= 8) return 3;
    *pending = it->memory >= 2;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(device it, int uncorrected, int aggregate, unsigned long long *n) {
    *n = uncorrected == 1 && aggregate == 0 && it->memory == 2;
    return 0;
}

const char *nvmlErrorString(int code) { (void)code; return "an error"; }

/* -1: a driver that hangs */
int cuInit(unsigned flags) { (void)flags; while (cuinit < 0) sleep(1); return cuinit; }
int cuDeviceGetCount(int *number) { *number = count; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDriverGetVersion(int *version) { *version = cuda; return 0; }
