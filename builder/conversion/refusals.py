"""Operators without a converter, each with its reason, for error messages and documentation."""

from __future__ import annotations

_MATRICES = "TensorRT has no layer that factors, inverts or solves a matrix"
_FUNCTIONS = "TensorRT has no layer for this function, and no composition of its layers has float32 accuracy"
_BY_DATA = "the size of its result depends on the data"
_BITS = "it reads or writes the bits of a number"
_COMPLEX = (
    "it uses complex numbers that lowering could not split into real ones, and TensorRT has no "
    "complex dtype"
)
_SPARSE = (
    "TensorRT has no sparse, nested or quantized tensors (quantize with fake_quantize)"
)
_PACKED = (
    "it uses weights that torch packed for the CPU: export the module before "
    "torch.ao.quantization.convert"
)
_TRAINING = "it is used only in training"
_RECURSION = "its recursion over alignments is used only in training"
_DOUBLE = "its result is float64, which TensorRT does not have"
_LOOP = "its number of steps depends on the data of each element"

_GROUPS: dict[str, str] = {
    _MATRICES: (
        """
        cholesky cholesky_inverse cholesky_solve det geqrf inverse linalg_cholesky linalg_cholesky_ex linalg_cond
        linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
        linalg_inv_ex linalg_ldl_factor linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_solve
        linalg_matrix_exp linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
        linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve logdet lu_solve
        lu_unpack matrix_exp nuclear_norm orgqr ormqr pinverse qr slogdet svd triangular_solve _linalg_svd
        _linalg_eigh _linalg_slogdet _linalg_det _linalg_solve_ex _lu_with_info"""
    ),
    _FUNCTIONS: (
        """
        digamma erfinv i0 igamma igammac lgamma mvlgamma polygamma special_bessel_j0 special_bessel_j1
        special_digamma special_erfcx special_erfinv special_gammainc special_gammaincc special_gammaln special_i0
        special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_polygamma special_psi
        special_zeta"""
    ),
    _BY_DATA: "bincount unique_consecutive unique_dim _unique _unique2 histogram histogramdd",
    _BITS: "frexp nextafter view.dtype",
    _COMPLEX: (
        """
        complex fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2
        fft_irfftn fft_rfft fft_rfft2 fft_rfftn imag istft polar stft.center view_as_complex view_as_real"""
    ),
    _SPARSE: (
        """
        quantize_per_tensor_dynamic to_dense to_mkldnn to_sparse
        to_padded_tensor _nested_tensor_from_mask"""
    ),
    _TRAINING: (
        "alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout"
        " fractional_max_pool2d"
    ),
    _RECURSION: "ctc_loss _ctc_loss",
    _DOUBLE: "float_power",
    _LOOP: "gcd lcm",
}

REASONS: dict[str, str] = {
    name: reason for reason, names in _GROUPS.items() for name in names.split()
}
"""The reason by the operator's name, or by its name and overload.
"""


def reason(key: str) -> str:
    """Why `aten::name.overload` has no converter."""
    if key.startswith("quantized::"):
        return _PACKED
    name = key.removeprefix("aten::")
    return (
        REASONS.get(name)
        or REASONS.get(name.partition(".")[0])
        or "no converter is registered for this operator"
    )
