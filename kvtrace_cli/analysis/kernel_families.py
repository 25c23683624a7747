"""Which family each kernel that writes the KV cache is of, so that a replacement can be named.

Source: vLLM's kernels, versions 0.20 to 0.33.
"""

from typing import Final

UNKNOWN_FAMILY: Final = "unknown"

_FAMILIES: Final = {
    "reshape_and_cache_flash_kernel": "flash",
    "reshape_and_cache_nvfp4_kernel": "flash, NVFP4",
    "reshape_and_cache_kernel": "paged",
    "concat_and_cache_mla_kernel": "MLA",
    "concat_and_cache_ds_mla_kernel": "MLA, FP8",
    "concat_and_cache_mla_rope_fused_kernel": "MLA, fused with RoPE",
    "concat_and_cache_mla_grouped_kernel": "MLA, grouped layers",
    "indexer_k_quant_and_cache_kernel": "sparse indexer",
    "_fused_norm_rope_kernel": "MLA, fused with norm and RoPE",
    "fusedDeepseekV4FullCacheKernel": "DeepSeek-V4, fused",
    "quantize_and_insert_k_kernel": "DeepSeek-V4 compressor",
    "_save_partial_states_kernel": "DeepSeek-V4 compressor",
    "_finalize_norm_rope_quant_store_sparse_attn": "DeepSeek-V4 compressor",
    "fusedMiniMaxM3QNormRopeKVInsertKernel": "MiniMax-M3, fused",
    "fusedMuseSparkQKNormRopeKVInsertKernel": "Muse Spark, fused",
    "qknorm_rope_cache_kernel": "Step5, fused",
    "reshape_and_cache_kernel_flash": "flash, Triton",
    "reshape_and_cache_kernel_flash_diffkv": "flash, Triton, K and V of different size",
    "_reshape_cache_per_token_head": "flash, Triton, scales per token and head",
    "_reshape_cache_int4_kernel": "flash, Triton, INT4",
    "rope_norm_store_kv": "HPC, fused",
    "rope_norm_store_kv_fp8": "HPC, fused",
}
_PREFIXES: Final = {
    "concat_and_cache_nvfp4_ds_mla": "MLA, NVFP4",
    "fusedDeepseekV4QNormRopeKVRopeQuantInsertKernel": "DeepSeek-V4, fused",
    "_fused_kv_compress_norm_rope_insert_": "DeepSeek-V4 compressor",
    "fusedKimiK3MLA": "Kimi-K3 MLA, fused",
    "_tq_fused_store_": "TurboQuant, fused",
}


def kernel_family(base_name: str) -> str:
    """Return the family of a kernel by its base name; `unknown` for one that is not listed."""
    if base_name in _FAMILIES:
        return _FAMILIES[base_name]
    found = (family for prefix, family in _PREFIXES.items() if base_name.startswith(prefix))
    return next(found, UNKNOWN_FAMILY)
