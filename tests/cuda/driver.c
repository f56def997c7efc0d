// A driver of CUDA for machines without a GPU: it tells a function of the test what code loads and launches.
// Beside it the functions of CUDA's runtime and of torch that code of the cuda target calls, for tensors in the host's memory.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char path[4096]; } Module;
typedef struct { Module* module; char name[512]; int shared; } Function;
typedef int (*Launched)(const char* path, const char* name, const uint32_t* grid, uint32_t threads, uint32_t shared, int allowed, void** args);

static Launched launched;
void aotpack_stub_on_launch(Launched function) { launched = function; }

int cuInit(unsigned flags) { return 0; }
int cuGetErrorString(int code, const char** text) { *text = code == 700 ? "refused by the test's driver" : "an error of the test's driver"; return 0; }
int cuModuleLoad(Module** module, const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) return 301;
  fclose(file);
  *module = calloc(1, sizeof(Module));
  snprintf((*module)->path, sizeof((*module)->path), "%s", path);
  return 0;
}
int cuModuleUnload(Module* module) { free(module); return 0; }
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  *function = calloc(1, sizeof(Function));
  (*function)->module = module;
  snprintf((*function)->name, sizeof((*function)->name), "%s", name);
  return 0;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) { if (attribute == 8) function->shared = value; return 0; }
int cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void* stream,
                   void** args, void** extra) {
  uint32_t grid[3] = {gx, gy, gz};
  return launched && by == 1 && bz == 1 && !extra ? launched(f->module->path, f->name, grid, bx, shared, f->shared, args) : 700;
}

int cudaGetDevice(int* device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaMalloc(void** memory, size_t bytes) { *memory = malloc(bytes ? bytes : 1); return 0; }
int cudaFree(void* memory) { free(memory); return 0; }
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) { memcpy(to, from, bytes); return 0; }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) { memcpy(to, from, bytes); return 0; }
int cudaEventCreate(void** event) { *event = malloc(1); return 0; }
int cudaEventDestroy(void* event) { free(event); return 0; }
int cudaEventRecord(void* event, void* stream) { return 0; }
int cudaEventQuery(void* event) { return 0; }
int cudaEventSynchronize(void* event) { return 0; }
int cudaStreamSynchronize(void* stream) { return 0; }
int cudaGetLastError(void) { return 0; }
const char* cudaGetErrorString(int code) { return "an error of the test's runtime"; }

int aoti_torch_create_cuda_guard(int device, void** guard) { *guard = malloc(1); return 0; }
int aoti_torch_delete_cuda_guard(void* guard) { free(guard); return 0; }
int aoti_torch_cuda_guard_set_index(void* guard, int device) { return 0; }
int aoti_torch_create_cuda_stream_guard(void* stream, int device, void** guard) { *guard = malloc(1); return 0; }
int aoti_torch_delete_cuda_stream_guard(void* guard) { free(guard); return 0; }
int aoti_torch_get_current_cuda_stream(int device, void** stream) { *stream = NULL; return 0; }
int aoti_torch_device_type_cuda(void) { return 0; } // c10::DeviceType::CPU: memory of the host stands for that of a GPU
