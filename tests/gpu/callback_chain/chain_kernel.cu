/* The chain's one kernel, in an image that is loaded once for each callback. */

/* Dependent additions, in which nothing but time passes, and then what a cache kernel does: each
 * thread stores 16 bytes of K and of V. */
extern "C" __global__ void probe_target(unsigned iterations, uint4 *cache) {
    float value = static_cast<float>(threadIdx.x);
    for (unsigned i = 0; i < iterations; ++i) {
        value = fmaf(value, 1.0001f, 0.5f);
    }
    const unsigned bits = __float_as_uint(value);
    uint4 *key = cache + 2 * blockIdx.x * blockDim.x;
    key[threadIdx.x] = make_uint4(bits, 1, 2, 3);
    key[blockDim.x + threadIdx.x] = make_uint4(bits, 4, 5, 6);
}
