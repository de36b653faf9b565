// What Metal and CUDA call differently, in CUDA; the kernels use Metal's names for positions.
#define DEVICE
#define THREAD
#define CONSTANT __constant__ const
#define METAL_FUNC __device__ __forceinline__
typedef unsigned long long u64;

#define thread_index_in_simdgroup (threadIdx.x % 32u)
#define simdgroup_index_in_threadgroup (threadIdx.x / 32u)
#define threadgroup_position_in_grid blockIdx
#define thread_position_in_grid                                                                    \
  (make_uint3(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,         \
              blockIdx.z * blockDim.z + threadIdx.z))

template <class To, class From>
METAL_FUNC To as_type(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

// Always the same tree over all 32 lanes, every lane with the result.
METAL_FUNC float simd_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
