// Large pages for the large buffers of a step. generated_sources.py puts this file before the code that allocates them.
//
// Such buffers are new memory in each step, because malloc returns what is freed to the system. The kernel clears it page by
// page when it is written, which took a third of the backward of GPT-2 small. With pages of 2 MB it takes a fourth of that.
// The first step goes without. In a virtual machine whose memory the host has not given yet, large pages take longer there.
// The source defines aotpack_runs_of_a_step: a layer that a model repeats is compiled once, and runs several times in a step.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace aotpack {

constexpr uintptr_t large_page = 2 << 20;

static std::atomic<int> runs{0}; // up to the first of the second step

static inline void begin_run() {
  if (runs.load(std::memory_order_relaxed) <= aotpack_runs_of_a_step) {
    runs.fetch_add(1, std::memory_order_relaxed);
  }
}

// THP_MEM_ALLOC_ENABLE is torch's variable for large pages. "0" turns them off here, too.
static bool large_pages_wanted() {
  static const bool wanted = [] {
    const char* set = std::getenv("THP_MEM_ALLOC_ENABLE");
    return set == nullptr || *set != '0';
  }();
  return wanted;
}

// Advice only: where the kernel does not take it, pages stay small.
static void use_large_pages([[maybe_unused]] AtenTensorHandle tensor) {
#if defined(MADV_HUGEPAGE)
  void* memory = nullptr;
  int64_t bytes = 0;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &memory));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor, &bytes));
  const auto start = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (start + large_page - 1) / large_page * large_page;
  const uintptr_t last = (start + static_cast<uintptr_t>(bytes)) / large_page * large_page;
  if (first < last && large_pages_wanted()) {
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
}

static inline AOTITorchError empty_strided(
    int64_t dimensions,
    const int64_t* sizes,
    const int64_t* strides,
    int32_t dtype,
    int32_t device,
    int32_t index,
    AtenTensorHandle* made) {
  const AOTITorchError error = aoti_torch_empty_strided(dimensions, sizes, strides, dtype, device, index, made);
  uint64_t elements = 1;
  for (int64_t dimension = 0; dimension < dimensions; ++dimension) {
    elements *= static_cast<uint64_t>(sizes[dimension]);
  }
  if (error == AOTI_TORCH_SUCCESS && elements >= large_page / 4 && runs.load(std::memory_order_relaxed) > aotpack_runs_of_a_step) {
    use_large_pages(*made);
  }
  return error;
}

} // namespace aotpack
