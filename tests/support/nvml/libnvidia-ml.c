/* A stand-in for NVIDIA's libnvidia-ml.so.1: it answers what a text file says, which a test rewrites at any time.
 *
 * The file is named by the environment variable NVML_STANDIN, or is `nvml.txt` beside the library. A line is a number
 * of the GPU (`-` for the node), the name of an answer, and its values:
 *
 *   - driver 580.95.05          - cuda 13000         - count 2        - init 0 (what nvmlInit returns)
 *   0 uuid GPU-...              0 pci 00000000:18:00.0               0 name NVIDIA H100 80GB HBM3
 *   0 memory 85520809984        0 used 503316480                     0 mig 1 (mode)
 *   0 instance GI CI MIG-... 1g.10gb START SIZE SLICES CISLICES SMS MEMORYMB CE DEC ENC JPEG OFA
 *   0 profile ENUM ID SMS CE DEC ENC JPEG OFA MEMORYMB SIZE START START ...
 *   0 process PID BYTES PERCENT MIG    MIG: number of the instance, -1 for the whole GPU
 *   0 error FUNCTION CODE       - hang FUNCTION    - crash FUNCTION  (of any GPU: `-`)
 *   0 event SERIAL TYPE DATA GI CI     an event that is handed out once, in the order of SERIAL
 *
 * Signatures and structures are those of nvml.h (CUDA 13); a function that is missing here is one that an old driver
 * does not have.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int R;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10 };

/* A handle is the address of one of these: GPU `gpu`, and for a MIG device the line `mig` of its instances. */
struct handle { int gpu, mig; };
static struct handle gpus[64], migs[64][16], sets[1];
static long long last_event = 0;
static int initialised = 0;

static FILE *answers(void) {
  char path[4096];
  const char *named = getenv("NVML_STANDIN");
  if (named) {
    snprintf(path, sizeof path, "%s", named);
  } else {
    Dl_info info;
    dladdr((void *)answers, &info);
    snprintf(path, sizeof path, "%s", info.dli_fname);
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "nvml.txt");
  }
  return fopen(path, "r");
}

/* The rest of line number `nth` that begins with this GPU and this name; 0 when there is none. */
static int line(int gpu, const char *name, int nth, char *rest, size_t size) {
  char text[4096], who[32], what[128];
  int at = 0, found = 0;
  FILE *file = answers();
  if (!file) return 0;
  while (!found && fgets(text, sizeof text, file)) {
    text[strcspn(text, "\n")] = 0;
    if (sscanf(text, "%31s %127s %n", who, what, &at) < 2) continue;
    if ((gpu < 0 ? strcmp(who, "-") : strcmp(who, "-") == 0 || atoi(who) != gpu) || strcmp(what, name)) continue;
    if (nth-- > 0) continue;
    snprintf(rest, size, "%s", text + at);
    found = 1;
  }
  fclose(file);
  return found;
}

/* What a call does before it answers: hang, crash, or the error that the file says. */
static R before(int gpu, const char *function) {
  char rest[4096], name[128];
  int code;
  for (int nth = 0; line(-1, "hang", nth, rest, sizeof rest); nth++)
    if (!strcmp(rest, function)) for (;;) pause();
  for (int nth = 0; line(-1, "crash", nth, rest, sizeof rest); nth++)
    if (!strcmp(rest, function)) raise(SIGSEGV);
  for (int nth = 0; line(gpu, "error", nth, rest, sizeof rest); nth++)
    if (sscanf(rest, "%127s %d", name, &code) == 2 && (!strcmp(name, function) || !strcmp(name, "*"))) return code;
  return OK;
}

static R number(int gpu, const char *name, unsigned long long *value) {
  char rest[4096];
  if (!line(gpu, name, 0, rest, sizeof rest)) return NOT_SUPPORTED;
  *value = strtoull(rest, NULL, 0);
  return OK;
}

static R text(int gpu, const char *name, char *out, unsigned size) {
  char rest[4096];
  if (!line(gpu, name, 0, rest, sizeof rest)) return NOT_SUPPORTED;
  snprintf(out, size, "%s", rest);
  return OK;
}

#define BEFORE(gpu) do { R code = before(gpu, __func__); if (code) return code; } while (0)
#define NUMBER(gpu, name, out) do { \
    unsigned long long value; \
    R code = number(gpu, name, &value); \
    if (!code) *(out) = value; \
    return code; \
  } while (0)

struct instance {
  unsigned gi, ci, start, size, slices, cislices, sms, ce, dec, enc, jpeg, ofa;
  unsigned long long memory;
  char uuid[128], profile[64];
};

static int instance(int gpu, int nth, struct instance *i) {
  char rest[4096];
  if (!line(gpu, "instance", nth, rest, sizeof rest)) return 0;
  return sscanf(rest, "%u %u %127s %63s %u %u %u %u %u %llu %u %u %u %u %u", &i->gi, &i->ci, i->uuid, i->profile,
                &i->start, &i->size, &i->slices, &i->cislices, &i->sms, &i->memory, &i->ce, &i->dec, &i->enc,
                &i->jpeg, &i->ofa) == 15;
}

/* --- the library ---------------------------------------------------------------------------------------------------*/

R nvmlInitWithFlags(unsigned flags) {
  unsigned long long code = OK;
  (void)flags;
  BEFORE(-1);
  number(-1, "init", &code);
  if (!code && !initialised) {
    for (int g = 0; g < 64; g++) {
      gpus[g] = (struct handle){g, -1};
      for (int m = 0; m < 16; m++) migs[g][m] = (struct handle){g, m};
    }
    initialised = 1;
  }
  return code;
}
R nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(R code) { return code == 18 ? "Driver/library version mismatch" : "an error"; }
R nvmlSystemGetDriverVersion(char *out, unsigned size) { BEFORE(-1); return text(-1, "driver", out, size); }
R nvmlSystemGetCudaDriverVersion_v2(int *out) { BEFORE(-1); NUMBER(-1, "cuda", out); }
R nvmlDeviceGetCount_v2(unsigned *out) { BEFORE(-1); NUMBER(-1, "count", out); }
R nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out) {
  if (index >= 64) return INVALID;
  BEFORE((int)index);
  *out = &gpus[index];
  return OK;
}

/* --- a GPU ---------------------------------------------------------------------------------------------------------*/

R nvmlDeviceGetUUID(struct handle *h, char *out, unsigned size) {
  struct instance i;
  BEFORE(h->gpu);
  if (h->mig < 0) return text(h->gpu, "uuid", out, size);
  if (!instance(h->gpu, h->mig, &i)) return NOT_FOUND;
  snprintf(out, size, "%s", i.uuid);
  return OK;
}
R nvmlDeviceGetName(struct handle *h, char *out, unsigned size) {
  char name[256] = "";
  struct instance i;
  BEFORE(h->gpu);
  R code = text(h->gpu, "name", name, sizeof name);
  if (code || h->mig < 0) { snprintf(out, size, "%s", name); return code; }
  if (!instance(h->gpu, h->mig, &i)) return NOT_FOUND;
  snprintf(out, size, "%s MIG %s", name, i.profile);
  return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
R nvmlDeviceGetPciInfo_v3(struct handle *h, struct pci *out) {
  BEFORE(h->gpu);
  memset(out, 0, sizeof *out);
  return text(h->gpu, "pci", out->bus_id, sizeof out->bus_id);
}
R nvmlDeviceGetMinorNumber(struct handle *h, unsigned *out) { BEFORE(h->gpu); NUMBER(h->gpu, "minor", out); }
R nvmlDeviceGetSerial(struct handle *h, char *out, unsigned size) { BEFORE(h->gpu); return text(h->gpu, "serial", out, size); }
struct memory { unsigned long long total, free, used; };
R nvmlDeviceGetMemoryInfo(struct handle *h, struct memory *out) {
  BEFORE(h->gpu);
  char used[64];
  memset(out, 0, sizeof *out);
  if (text(h->gpu, "used", used, sizeof used) == OK) out->used = strtoull(used, 0, 10);
  NUMBER(h->gpu, "memory", &out->total);
}
R nvmlDeviceGetCudaComputeCapability(struct handle *h, int *major, int *minor) {
  char rest[64];
  BEFORE(h->gpu);
  R code = text(h->gpu, "capability", rest, sizeof rest);
  if (!code) sscanf(rest, "%d.%d", major, minor);
  return code;
}
R nvmlDeviceGetArchitecture(struct handle *h, unsigned *out) { BEFORE(h->gpu); NUMBER(h->gpu, "architecture", out); }
R nvmlDeviceGetBrand(struct handle *h, unsigned *out) { BEFORE(h->gpu); NUMBER(h->gpu, "brand", out); }
struct addressing { unsigned version, value; };
R nvmlDeviceGetAddressingMode(struct handle *h, struct addressing *out) { BEFORE(h->gpu); NUMBER(h->gpu, "addressing", &out->value); }

struct fabric { unsigned char uuid[16]; unsigned status, clique, state; };
R nvmlDeviceGetGpuFabricInfo(struct handle *h, struct fabric *out) {
  unsigned long long clique, state = 3;
  BEFORE(h->gpu);
  if (number(h->gpu, "clique", &clique)) return NOT_SUPPORTED;
  number(h->gpu, "fabric", &state);
  *out = (struct fabric){{0}, 0, clique, state};
  if (clique != 99) for (int i = 0; i < 16; i++) out->uuid[i] = 0xa0 + i;  /* 99: within the node alone */
  return OK;
}

/* --- health --------------------------------------------------------------------------------------------------------*/

R nvmlDeviceGetTemperature(struct handle *h, unsigned sensor, unsigned *out) { (void)sensor; BEFORE(h->gpu); NUMBER(h->gpu, "celsius", out); }
R nvmlDeviceGetTemperatureThreshold(struct handle *h, unsigned kind, unsigned *out) {
  BEFORE(h->gpu);
  if (kind) return NOT_SUPPORTED;
  NUMBER(h->gpu, "shutdown", out);
}
R nvmlDeviceGetCurrentClocksThrottleReasons(struct handle *h, unsigned long long *out) { BEFORE(h->gpu); NUMBER(h->gpu, "throttle", out); }
R nvmlDeviceGetTotalEccErrors(struct handle *h, unsigned kind, unsigned counter, unsigned long long *out) {
  BEFORE(h->gpu);
  if (kind != 1 || counter) return NOT_SUPPORTED;
  NUMBER(h->gpu, "ecc", out);
}
R nvmlDeviceGetRemappedRows(struct handle *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
  char rest[64];
  BEFORE(h->gpu);
  R code = text(h->gpu, "rows", rest, sizeof rest);
  if (!code) sscanf(rest, "%u %u %u %u", corrected, uncorrected, pending, failure);
  return code;
}
R nvmlDeviceGetRetiredPagesPendingStatus(struct handle *h, unsigned *out) { BEFORE(h->gpu); NUMBER(h->gpu, "retired", out); }
struct field { uint32_t id, scope; int64_t timestamp, latency; int32_t type, code; union { double d; unsigned u; unsigned long long l; } value; };
R nvmlDeviceGetFieldValues(struct handle *h, int count, struct field *fields) {
  BEFORE(h->gpu);
  for (int n = 0; n < count; n++) {
    unsigned long long value = 0;
    fields[n].code = fields[n].id == 230 ? number(h->gpu, "recovery", &value) : NOT_SUPPORTED;
    fields[n].type = 1;
    fields[n].value.u = value;
  }
  return OK;
}

/* --- processes ----------------------------------------------------------------------------------------------------*/

struct process { unsigned pid; unsigned long long bytes; unsigned gi, ci; };
R nvmlDeviceGetComputeRunningProcesses_v3(struct handle *h, unsigned *count, struct process *out) {
  char rest[4096];
  unsigned room = *count;
  BEFORE(h->gpu);
  *count = 0;
  for (int nth = 0; line(h->gpu, "process", nth, rest, sizeof rest); nth++) {
    struct process one = {0};
    int mig;
    if (sscanf(rest, "%u %llu %*d %d", &one.pid, &one.bytes, &mig) != 3 || mig != h->mig) continue;
    if ((*count)++ < room) out[*count - 1] = one;
  }
  return *count > room ? SMALL : OK;
}
R nvmlDeviceGetMPSComputeRunningProcesses_v3(struct handle *h, unsigned *count, struct process *out) { (void)out; BEFORE(h->gpu); *count = 0; return OK; }
R nvmlDeviceGetGraphicsRunningProcesses_v3(struct handle *h, unsigned *count, struct process *out) { return nvmlDeviceGetComputeRunningProcesses_v3(h, count, out); }
struct sample { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; };
R nvmlDeviceGetProcessUtilization(struct handle *h, struct sample *out, unsigned *count, unsigned long long since) {
  char rest[4096];
  unsigned room = *count;
  static unsigned long long now = 1000;
  BEFORE(h->gpu);
  if (h->mig >= 0) return NOT_SUPPORTED;
  if (since > now) return INVALID;
  *count = 0;
  for (int nth = 0; line(h->gpu, "process", nth, rest, sizeof rest); nth++) {
    struct sample one = {.at = now};
    if (sscanf(rest, "%u %*u %u", &one.pid, &one.sm) != 2 || !one.sm) continue;
    if ((*count)++ < room) out[*count - 1] = one;
  }
  if (!*count) return NOT_FOUND;
  now += *count <= room;
  return *count > room ? SMALL : OK;
}

/* --- events --------------------------------------------------------------------------------------------------------*/

R nvmlEventSetCreate(struct handle **out) { BEFORE(-1); *out = &sets[0]; return OK; }
R nvmlEventSetFree(struct handle *set) { (void)set; return OK; }
R nvmlDeviceGetSupportedEventTypes(struct handle *h, unsigned long long *out) { BEFORE(h->gpu); NUMBER(h->gpu, "events", out); }
R nvmlDeviceRegisterEvents(struct handle *h, unsigned long long types, struct handle *set) { (void)types; (void)set; BEFORE(h->gpu); return OK; }
struct event { struct handle *device; unsigned long long type, data; unsigned gi, ci; };
R nvmlEventSetWait_v2(struct handle *set, struct event *out, unsigned ms) {
  (void)set;
  for (unsigned waited = 0;; waited += 2) {
    BEFORE(-1);
    char rest[4096];
    for (int g = 0; g < 64; g++)
      for (int nth = 0; line(g, "event", nth, rest, sizeof rest); nth++) {
        long long serial;
        if (sscanf(rest, "%lld %llu %llu %u %u", &serial, &out->type, &out->data, &out->gi, &out->ci) != 5) continue;
        if (serial <= last_event) continue;
        last_event = serial;
        out->device = &gpus[g];
        return OK;
      }
    if (waited >= ms) return TIMEOUT;
    nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
}

/* --- MIG -----------------------------------------------------------------------------------------------------------*/

R nvmlDeviceGetMigMode(struct handle *h, unsigned *current, unsigned *pending) { BEFORE(h->gpu); *pending = 0; NUMBER(h->gpu, "mig", current); }
R nvmlDeviceGetMaxMigDeviceCount(struct handle *h, unsigned *out) { BEFORE(h->gpu); *out = 7; return OK; }
R nvmlDeviceGetMigDeviceHandleByIndex(struct handle *h, unsigned index, struct handle **out) {
  struct instance i;
  BEFORE(h->gpu);
  if (!instance(h->gpu, index, &i)) return NOT_FOUND;
  *out = &migs[h->gpu][index];
  return OK;
}
R nvmlDeviceGetGpuInstanceId(struct handle *h, unsigned *out) {
  struct instance i;
  BEFORE(h->gpu);
  if (!instance(h->gpu, h->mig, &i)) return NOT_FOUND;
  *out = i.gi;
  return OK;
}
R nvmlDeviceGetComputeInstanceId(struct handle *h, unsigned *out) {
  struct instance i;
  BEFORE(h->gpu);
  if (!instance(h->gpu, h->mig, &i)) return NOT_FOUND;
  *out = i.ci;
  return OK;
}
struct attributes { unsigned sms, ce, dec, enc, jpeg, ofa, slices, cislices; unsigned long long memory; };
R nvmlDeviceGetAttributes_v2(struct handle *h, struct attributes *out) {
  struct instance i;
  BEFORE(h->gpu);
  if (!instance(h->gpu, h->mig, &i)) return NOT_FOUND;
  *out = (struct attributes){i.sms, i.ce, i.dec, i.enc, i.jpeg, i.ofa, i.slices, i.cislices, i.memory};
  return OK;
}
R nvmlDeviceGetGpuInstanceById(struct handle *h, unsigned gi, struct handle **out) {
  struct instance i;
  BEFORE(h->gpu);
  for (int nth = 0; instance(h->gpu, nth, &i); nth++)
    if (i.gi == gi) { *out = &migs[h->gpu][nth]; return OK; }
  return NOT_FOUND;
}
struct placement { unsigned start, size; };
struct gi_info { struct handle *device; unsigned id, profile; struct placement place; };
R nvmlGpuInstanceGetInfo(struct handle *h, struct gi_info *out) {
  struct instance i;
  BEFORE(h->gpu);
  if (!instance(h->gpu, h->mig, &i)) return NOT_FOUND;
  *out = (struct gi_info){&gpus[h->gpu], i.gi, 0, {i.start, i.size}};
  char rest[4096];
  unsigned id, sms, ofa;
  for (int nth = 0; line(h->gpu, "profile", nth, rest, sizeof rest); nth++)
    if (sscanf(rest, "%*u %u %u %*u %*u %*u %*u %u", &id, &sms, &ofa) == 3 && sms == i.sms && ofa == i.ofa) out->profile = id;
  return OK;
}
struct profile { unsigned version, id, p2p, slices, count, sms, ce, dec, enc, jpeg, ofa; unsigned long long memory; char name[96]; };
R nvmlDeviceGetGpuInstanceProfileInfoV(struct handle *h, unsigned number, struct profile *out) {
  char rest[4096];
  unsigned n;
  BEFORE(h->gpu);
  for (int nth = 0; line(h->gpu, "profile", nth, rest, sizeof rest); nth++)
    if (sscanf(rest, "%u %u %u %u %u %u %u %u %llu", &n, &out->id, &out->sms, &out->ce, &out->dec, &out->enc,
               &out->jpeg, &out->ofa, &out->memory) == 9 && n == number) return OK;
  return NOT_SUPPORTED;
}
R nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct handle *h, unsigned id, struct placement *out, unsigned *count) {
  char rest[4096];
  unsigned found, size, start;
  int at, more;
  BEFORE(h->gpu);
  for (int nth = 0; line(h->gpu, "profile", nth, rest, sizeof rest); nth++) {
    if (sscanf(rest, "%*u %u %*u %*u %*u %*u %*u %*u %*u %u %n", &found, &size, &at) < 2 || found != id) continue;
    unsigned n = 0;
    for (; n < *count && sscanf(rest + at, "%u %n", &start, &more) == 1; at += more, n++) out[n] = (struct placement){start, size};
    *count = n;
    return OK;
  }
  return NOT_SUPPORTED;
}
