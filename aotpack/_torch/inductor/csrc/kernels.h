// Functions that compiled kernels call, and faster forms of some of torch's. scatters.py and generated_sources.py put this
// file before generated code that needs it.

#include <torch/csrc/inductor/cpp_prefix.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <omp.h>

namespace aotpack {

// Whether one thread makes all additions of a loop into elements by index. The answer is the same everywhere in a parallel
// region, so a loop asks once.
[[maybe_unused]] __attribute__((const, noinline)) static bool adds_alone() {
  return omp_get_num_threads() <= 4;
}

// The iterations of such a loop that a thread makes before the next thread's: all of them, if one thread makes all additions.
[[maybe_unused]] static inline int64_t iterations(int64_t count) {
  const int64_t threads = adds_alone() ? 1 : omp_get_num_threads();
  return std::max<int64_t>(1, (count + threads - 1) / threads);
}

} // namespace aotpack

// torch's sum of many elements in chunks (CascadeSumHelper of cpp_prefix.h), with the same values. The sum of the present chunk is
// a member, not an element of a vector on the heap. So the compiler keeps it in a register, also in code for any number of threads.
namespace aotpack {

template <typename T, uint64_t kChunkSize = 0>
struct CascadeSum {
  T now = T(0); // sum_stk[0]
  uint64_t depth{0};
  uint64_t chunks{0};
  uint64_t index{0};
  std::vector<T> levels{};

  CascadeSum() = default;
  CascadeSum(uint64_t count) : depth(ceil_log2_u64((count + kChunkSize - 1) / kChunkSize)) {
    levels.assign(std::max(depth, static_cast<uint64_t>(1)), T(0));
  }

  void added() {
    if (depth > 0 && ++index == kChunkSize) {
      index = 0;
      now = carried(now, depth, ++chunks, levels.data());
    }
  }

  // Adds up the levels that are complete with this chunk. Returns what stays in the lowest.
  __attribute__((noinline, cold)) static T carried(T now, uint64_t depth, uint64_t chunks, T* levels) {
    levels[0] = now;
    for (uint64_t level = 1; level < depth && (chunks & 1) == 0; ++level, chunks >>= 1) {
      levels[level] = levels[level] + levels[level - 1];
      levels[level - 1] = T(0);
    }
    return levels[0];
  }
};

template <typename T, uint64_t kChunkSize>
inline T cascade_sum_combine(T& data, CascadeSum<T, kChunkSize>* sum) {
  sum->now = sum->now + data;
  sum->added();
  return sum->now;
}

template <typename T, uint64_t kChunkSize>
inline T cascade_sum_combine(T& data, int64_t count, CascadeSum<T, kChunkSize>* sum) {
  sum->now = T::set(sum->now, sum->now + data, count);
  sum->added();
  return sum->now;
}

template <typename T, uint64_t kChunkSize>
inline T cascade_sum_final(CascadeSum<T, kChunkSize>* sum) {
  T result = sum->now;
  for (uint64_t level = 1; level < sum->depth; ++level) {
    result = result + sum->levels[level];
  }
  return result;
}

} // namespace aotpack

// torch converts masks to and from bytes one element at a time; of the store it computes four times as many as it stores, of
// masks of eight-byte elements eight times as many. A mask's elements are all ones or all zeros.
#if INDUCTOR_USE_VECTOR_TYPES() && (defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2))

namespace aotpack {

#if defined(CPU_CAPABILITY_AVX512)

static inline __m128i bytes_of(const at::vec::Vectorized<float>& mask) {
  return _mm512_cvtepi32_epi8(_mm512_srli_epi32(_mm512_castps_si512(mask), 31));
}

static inline at::vec::Vectorized<float> mask_of(__m128i bytes) {
  const __m512i values = _mm512_cvtepu8_epi32(bytes);
  return _mm512_castsi512_ps(_mm512_movm_epi32(_mm512_test_epi32_mask(values, values)));
}

static inline void store(__m128i bytes, bool* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

static inline __m128i load(const bool* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

#else

static inline __m128i bytes_of(const at::vec::Vectorized<float>& mask) {
  const __m256i ones = _mm256_srli_epi32(_mm256_castps_si256(mask), 31);
  const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(ones), _mm256_extracti128_si256(ones, 1));
  return _mm_packs_epi16(shorts, shorts);
}

static inline at::vec::Vectorized<float> mask_of(__m128i bytes) {
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_setzero_si256()));
}

static inline void store(__m128i bytes, bool* to) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
}

static inline __m128i load(const bool* from) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

#endif

constexpr int kLanes = at::vec::Vectorized<float>::size();

static inline void store(const at::vec::Vectorized<float>& mask, bool* to, int count) {
  if (count >= kLanes) {
    store(bytes_of(mask), to);
    return;
  }
  alignas(16) bool rest[16];
  store(bytes_of(mask), rest);
  std::memcpy(to, rest, std::max(count, 0));
}

static inline at::vec::Vectorized<float> load(const bool* from, int count) {
  if (count >= kLanes) {
    return mask_of(load(from));
  }
  alignas(16) bool rest[16] = {};
  std::memcpy(rest, from, std::max(count, 0));
  return mask_of(load(rest));
}

} // namespace aotpack

namespace at::vec {
inline namespace CPU_CAPABILITY {

template <>
inline void VecMask<float, 1>::store(bool* b, int count) {
  aotpack::store(mask_[0], b, count);
}

template <>
inline void VecMask<float, 2>::store(bool* b, int count) {
  aotpack::store(mask_[0], b, count);
  aotpack::store(mask_[1], b + aotpack::kLanes, count - aotpack::kLanes);
}

template <>
inline void VecMask<int, 1>::store(bool* b, int count) {
  cast<float, 1>().store(b, count);
}

template <>
inline void VecMask<int64_t, 2>::store(bool* b, int count) {
  cast<float, 1>().store(b, count);
}

template <>
inline void VecMask<double, 2>::store(bool* b, int count) {
  cast<float, 1>().store(b, count);
}

template <>
template <>
inline VecMask<float, 1> VecMask<float, 1>::from<const bool>(const bool* b, int count) {
  return VecMask<float, 1>(aotpack::load(b, count));
}

template <>
template <>
inline VecMask<float, 1> VecMask<float, 1>::from<bool>(bool* b, int count) {
  return VecMask<float, 1>(aotpack::load(b, count));
}

template <>
template <>
inline VecMask<float, 2> VecMask<float, 2>::from<const bool>(const bool* b, int count) {
  return VectorizedN<float, 2>(aotpack::load(b, count), aotpack::load(b + aotpack::kLanes, count - aotpack::kLanes));
}

template <>
template <>
inline VecMask<float, 2> VecMask<float, 2>::from<bool>(bool* b, int count) {
  return VecMask<float, 2>::from<const bool>(b, count);
}

} // namespace CPU_CAPABILITY
} // namespace at::vec

#endif
