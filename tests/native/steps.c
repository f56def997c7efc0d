/* Runs compiled graphs of a bundle from C11, as spec/native.md says: with libtorch's C interface and no header of torch.
 *
 *   steps SCRIPT
 *
 * Each line of the script is one step. Values are numbered as they are made, codes as they are opened.
 *
 *   code PATH                                       open compiled code
 *   tensor DTYPE PATH OFFSET NDIM SIZES... STRIDES...  a value: memory of a file that is mapped copy-on-write
 *   carrier N                                       a value: float32 of shape (N, 0)
 *   run CODE OUTPUTS ARGUMENT...                    values: what the code returns; a new handle to each argument is passed,
 *                                                   of N* to a copy of value N
 *   threads CODE OUTPUTS ARGUMENT...                the same from several threads at once, which must agree; no values
 *   fail CODE OUTPUTS ARGUMENT...                   the code must refuse these arguments; no values
 *   state VALUE                                     the state of the default generator
 *   release VALUE...                                no longer needed
 *   write VALUE PATH                                the elements to a file, in row-major order; prints sizes and strides
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct AtenTensorOpaque *Tensor;
typedef struct AOTInductorModelContainerOpaque *Container;
typedef int32_t Status; /* 0: done */

/* libtorch: the C interface that compiled code uses too */
extern Status torch_from_blob(void *data, int64_t ndim, const int64_t *sizes, const int64_t *strides, int64_t offset,
                              int32_t dtype, int32_t device_type, int32_t device_index, Tensor *made, int32_t layout,
                              const uint8_t *metadata, int64_t metadata_size, void (*deleter)(void *, void *), void *context);
extern Status aoti_torch_empty_strided(int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                       int32_t device_type, int32_t device_index, Tensor *made);
extern Status aoti_torch_new_tensor_handle(Tensor tensor, Tensor *made);
extern Status aoti_torch_clone_preserve_strides(Tensor tensor, Tensor *made);
extern Status aoti_torch_delete_tensor_object(Tensor tensor);
extern Status aoti_torch_get_data_ptr(Tensor tensor, void **data);
extern Status aoti_torch_get_dim(Tensor tensor, int64_t *ndim);
extern Status aoti_torch_get_dtype(Tensor tensor, int32_t *dtype);
extern Status aoti_torch_get_sizes(Tensor tensor, int64_t **borrowed);
extern Status aoti_torch_get_strides(Tensor tensor, int64_t **borrowed);
extern size_t aoti_torch_dtype_element_size(int32_t dtype);
extern int32_t aoti_torch_dtype_float32(void), aoti_torch_dtype_int64(void), aoti_torch_dtype_uint8(void);
extern int32_t aoti_torch_device_type_cpu(void), aoti_torch_layout_strided(void);

/* The C interface has nothing for the generator. These are at::detail::getDefaultCPUGenerator and
   at::Generator::set_state(const at::Tensor &): a handle is a pointer to an at::Tensor. */
extern void *default_generator(void) __asm__("_ZN2at6detail22getDefaultCPUGeneratorEv");
extern void set_state(void *generator, Tensor state) __asm__("_ZN2at9Generator9set_stateERKNS_6TensorE");

/* compiled code */
typedef Status Create(Container *made, size_t models, const char *device, const char *kernels);
typedef Status Run(Container container, Tensor *inputs, size_t count, Tensor *outputs, size_t returned, void *stream,
                   void *proxy_executor);
typedef Status Count(Container container, size_t *count);
typedef Status Delete(Container container);
typedef Status LastError(const char **message);

typedef struct {
  Container container;
  Run *run;
  Delete *delete;
  LastError *last_error;
  size_t inputs, outputs;
} Code;

enum { CODES = 8, VALUES = 256, ARGUMENTS = 64, DIMENSIONS = 8, THREADS = 3 };

static Code codes[CODES];
static Tensor values[VALUES];
static size_t code_count, value_count, freed;

static _Noreturn void stop(const char *what) {
  fprintf(stderr, "steps: %s\n", what);
  exit(1);
}

static void check(Status status, const char *what) {
  if (status != 0) stop(what);
}

static long long number(void) {
  const char *word = strtok(NULL, " \n");
  if (word == NULL) stop("a number is missing");
  char *end;
  const long long found = strtoll(word, &end, 10);
  if (*end != '\0') stop("this is no number");
  return found;
}

static void *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) stop(dlerror());
  return found;
}

static void open_code(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) stop(dlerror());
  Code *code = &codes[code_count++];
  /* A function pointer has the size of an object pointer in POSIX. */
  Create *create;
  Count *inputs, *outputs;
  *(void **)&create = function(library, "AOTInductorModelContainerCreateWithDevice");
  *(void **)&inputs = function(library, "AOTInductorModelContainerGetNumInputs");
  *(void **)&outputs = function(library, "AOTInductorModelContainerGetNumOutputs");
  *(void **)&code->run = function(library, "AOTInductorModelContainerRun");
  *(void **)&code->delete = function(library, "AOTInductorModelContainerDelete");
  *(void **)&code->last_error = function(library, "AOTInductorGetLastError");
  check(create(&code->container, THREADS, "cpu", NULL), "the container cannot be made");
  check(inputs(code->container, &code->inputs), "inputs");
  check(outputs(code->container, &code->outputs), "outputs");
}

static void count_freed(void *data, void *context) {
  (void)data;
  ++*(size_t *)context;
}

static void add_tensor(void) {
  const char *dtype = strtok(NULL, " \n"), *path = strtok(NULL, " \n");
  const int64_t offset = number(), ndim = number();
  int64_t sizes[DIMENSIONS], strides[DIMENSIONS];
  for (int64_t i = 0; i < ndim; ++i) sizes[i] = number();
  for (int64_t i = 0; i < ndim; ++i) strides[i] = number();
  const int file = open(path, O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) stop(strerror(errno));
  char *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED) stop(strerror(errno));
  close(file);
  const int32_t type = strcmp(dtype, "int64") == 0   ? aoti_torch_dtype_int64()
                       : strcmp(dtype, "uint8") == 0 ? aoti_torch_dtype_uint8()
                                                     : aoti_torch_dtype_float32();
  check(torch_from_blob(memory + offset, ndim, sizes, strides, 0, type, aoti_torch_device_type_cpu(), -1,
                        &values[value_count++], aoti_torch_layout_strided(), NULL, 0, count_freed, &freed),
        "the tensor cannot be made");
}

static void add_carrier(void) {
  const int64_t sizes[2] = {number(), 0}, strides[2] = {1, 1};
  check(aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), -1,
                                 &values[value_count++]),
        "the carrier cannot be made");
}

typedef struct {
  const Code *code;
  Tensor inputs[ARGUMENTS], outputs[ARGUMENTS];
  bool copied[ARGUMENTS];
  Status status;
} Call;

static void pass(Call *made, size_t position, Tensor tensor) {
  check((made->copied[position] ? aoti_torch_clone_preserve_strides : aoti_torch_new_tensor_handle)(
            tensor, &made->inputs[position]),
        "argument");
}

/* The call of the rest of the line. The code takes its inputs over, so each is a new handle. */
static Call call(void) {
  Call made = {.code = &codes[number()]};
  if ((size_t)number() != made.code->outputs) stop("the code returns another number of values");
  size_t given = 0;
  for (char *word; (word = strtok(NULL, " \n")) != NULL; ++given) {
    made.copied[given] = word[strlen(word) - 1] == '*';
    pass(&made, given, values[strtol(word, NULL, 10)]);
  }
  if (given != made.code->inputs) stop("the code takes another number of values"); /* the code would throw */
  return made;
}

static void *run(void *made) {
  Call *const c = made;
  c->status = c->code->run(c->code->container, c->inputs, c->code->inputs, c->outputs, c->code->outputs, NULL, NULL);
  return NULL;
}

static void add_results(void) {
  Call made = call();
  run(&made);
  check(made.status, "the code failed");
  for (size_t i = 0; i < made.code->outputs; ++i) {
    values[value_count + i] = made.outputs[i];
    for (size_t k = 0; k < i; ++k) /* one handle for two outputs is one reference */
      if (made.outputs[k] == made.outputs[i]) check(aoti_torch_new_tensor_handle(made.outputs[i], &values[value_count + i]), "twice");
  }
  value_count += made.code->outputs;
}

static void run_and_fail(void) {
  Call made = call();
  run(&made);
  if (made.status == 0) stop("the code ran, and should have failed");
  const char *message;
  check(made.code->last_error(&message), "message");
  printf("refused %.*s\n", (int)strcspn(message, "\n"), message);
}

/* The elements in row-major order, and how many bytes they are. */
static char *elements(Tensor tensor, size_t *bytes) {
  int64_t ndim, *sizes, *strides, index[DIMENSIONS] = {0};
  int32_t dtype;
  void *data;
  check(aoti_torch_get_dim(tensor, &ndim), "ndim");
  check(aoti_torch_get_sizes(tensor, &sizes), "sizes");
  check(aoti_torch_get_strides(tensor, &strides), "strides");
  check(aoti_torch_get_dtype(tensor, &dtype), "dtype");
  check(aoti_torch_get_data_ptr(tensor, &data), "data");
  const size_t each = aoti_torch_dtype_element_size(dtype);
  size_t count = 1;
  for (int64_t i = 0; i < ndim; ++i) count *= (size_t)sizes[i];
  char *const found = malloc(count * each + 1);
  for (size_t n = 0; n < count; ++n) {
    int64_t at = 0;
    for (int64_t i = 0; i < ndim; ++i) at += index[i] * strides[i];
    memcpy(found + n * each, (char *)data + at * (int64_t)each, each);
    for (int64_t i = ndim - 1; i >= 0 && ++index[i] == sizes[i]; --i) index[i] = 0;
  }
  *bytes = count * each;
  return found;
}

static void run_in_threads(void) {
  Call first = call(), calls[THREADS];
  pthread_t threads[THREADS];
  for (size_t t = 0; t < THREADS; ++t) {
    calls[t] = first;
    for (size_t i = 0; t > 0 && i < first.code->inputs; ++i) pass(&calls[t], i, first.inputs[i]);
  }
  for (size_t t = 0; t < THREADS; ++t)
    if (pthread_create(&threads[t], NULL, run, &calls[t]) != 0) stop("no thread");
  for (size_t t = 0; t < THREADS; ++t) pthread_join(threads[t], NULL);
  for (size_t t = 0; t < THREADS; ++t) {
    check(calls[t].status, "the code failed in a thread");
    for (size_t i = 0; i < first.code->outputs; ++i) {
      size_t size, other;
      char *expected = elements(calls[0].outputs[i], &size), *got = elements(calls[t].outputs[i], &other);
      if (size != other || memcmp(expected, got, size) != 0) stop("threads do not agree");
      free(expected), free(got);
    }
  }
  for (size_t t = 0; t < THREADS; ++t)
    for (size_t i = 0; i < first.code->outputs; ++i) check(aoti_torch_delete_tensor_object(calls[t].outputs[i]), "release");
}

static void write_value(void) {
  const long long value = number();
  const char *path = strtok(NULL, " \n");
  int64_t ndim, *sizes, *strides;
  check(aoti_torch_get_dim(values[value], &ndim), "ndim");
  check(aoti_torch_get_sizes(values[value], &sizes), "sizes");
  check(aoti_torch_get_strides(values[value], &strides), "strides");
  printf("value %lld", value);
  for (int64_t i = 0; i < ndim; ++i) printf(" %" PRId64, sizes[i]);
  for (int64_t i = 0; i < ndim; ++i) printf(" %" PRId64, strides[i]);
  printf("\n");
  size_t size;
  char *bytes = elements(values[value], &size);
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) stop(strerror(errno));
  free(bytes);
}

static void release(void) {
  for (char *word; (word = strtok(NULL, " \n")) != NULL;)
    check(aoti_torch_delete_tensor_object(values[strtol(word, NULL, 10)]), "release");
  printf("freed %zu\n", freed);
}

int main(int argc, char **argv) {
  FILE *const script = argc == 2 ? fopen(argv[1], "r") : NULL;
  if (script == NULL) stop("usage: steps SCRIPT");
  for (char line[8192]; fgets(line, sizeof line, script) != NULL;) {
    const char *step = strtok(line, " \n");
    if (step == NULL) continue;
    if (strcmp(step, "code") == 0) open_code(strtok(NULL, " \n"));
    else if (strcmp(step, "tensor") == 0) add_tensor();
    else if (strcmp(step, "carrier") == 0) add_carrier();
    else if (strcmp(step, "run") == 0) add_results();
    else if (strcmp(step, "threads") == 0) run_in_threads();
    else if (strcmp(step, "fail") == 0) run_and_fail();
    else if (strcmp(step, "state") == 0) set_state(default_generator(), values[number()]);
    else if (strcmp(step, "release") == 0) release();
    else if (strcmp(step, "write") == 0) write_value();
    else stop("an unknown step");
  }
  for (size_t i = 0; i < code_count; ++i) check(codes[i].delete(codes[i].container), "the container cannot be deleted");
  return 0;
}
