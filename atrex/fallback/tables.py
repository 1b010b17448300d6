"""Names of libraries, by what a call of them does."""

from __future__ import annotations

from atrex.fallback.operations import names

# Decorators that make a kernel of a function.
KERNEL_MAKERS = names(
    """triton.jit triton.runtime.jit.jit triton.experimental.gluon.jit triton.runtime.jit numba.cuda.jit
    numba.jit numba.njit triton.experimental.gluon.language.jit cupyx.jit.rawkernel tilelang.jit
    cutlass.cute.kernel"""
)
# Kernels from a source text.
RAW_KERNELS = names(
    """cupy.RawKernel torch.cuda._compile_kernel cupy.ElementwiseKernel cupy.ReductionKernel"""
)
# Give back what they get, or something that runs it.
WRAPPERS = names(
    """functools.lru_cache functools.cache functools.wraps functools.update_wrapper
    contextlib.contextmanager dataclasses.dataclass torch.no_grad
    torch.inference_mode torch.enable_grad torch.compiler.disable torch._dynamo.disable
    torch.compiler.allow_in_graph torch.jit.ignore torch.jit.unused torch.cuda.amp.custom_fwd
    torch.amp.custom_fwd torch.cuda.make_graphed_callables torch.library.wrap_triton
    torch._library.wrap_triton torch._library.capture_triton triton.autotune triton.heuristics
    typing.cast typing.overload typing.final abc.abstractmethod atexit.register torch.nn.Parameter
    torch.nn.parameter.Parameter torch.nn.Buffer torch._dynamo.allow_in_graph enum.unique total_ordering
    copy.copy copy.deepcopy torch.autograd.function.once_differentiable
    torch.compiler.assume_constant_result torch.utils._pytree.tree_map"""
)
# Make kernels of the operations of what they get.
COMPILERS = names(
    """torch.compile torch.jit.script torch.jit.trace torch.fx.symbolic_trace torch._dynamo.optimize
    torch.export.export torch.jit.script_method"""
)
# Run what they get through operations of their own.
TRANSFORMS = names(
    """torch.vmap torch.func.vmap torch._vmap_internals.vmap functorch.vmap torch.func.functionalize
    torch.utils.checkpoint.checkpoint jax.jit"""
)
# Modules that compute when they are given a tensor.
LIBRARIES = names(
    """flash_attn xformers cutlass apex liger_kernel flashinfer vllm sgl_kernel sglang fla
    transformer_engine deep_gemm scipy jax cupy torchvision torchaudio transformers aiter flag_gems
    causal_conv1d mamba_ssm onnxruntime tensorrt bitsandbytes kernels unsloth quack tensorflow
    opt_einsum cuequivariance thunderkittens kornia torchao fbgemm_gpu bench numexpr sklearn functorch"""
)
# Of NumPy: allocation, views, copies, metadata.
NUMPY_SETUP = names(
    """asarray array ascontiguousarray empty empty_like zeros zeros_like ones reshape transpose
    frombuffer copyto copy full arange dtype iinfo finfo prod shape ndim size float32 float16 float64
    int32 int64 ctypeslib save load memmap"""
)
# Of torch.nn: lists.
CONTAINERS = names("""torch.nn.ModuleList torch.nn.ParameterList""")
# Namespaces of torch.ops that compute.
KNOWN_OPS = names(
    """aten prims quantized torchvision vllm xformers flash_attn fbgemm sgl_kernel trtllm torchao _C mkldnn"""
)
# Give something that no reading can know.
LOADERS = names(
    """pickle.loads pickle.load marshal.loads marshal.load dill.loads cloudpickle.loads types.FunctionType
    types.CodeType importlib.util.module_from_spec importlib.util.spec_from_file_location runpy.run_path
    runpy.run_module importlib.reload imp.load_source importlib.machinery.SourceFileLoader torch.jit.load
    torch.utils.cpp_extension.load torch.export.load sys._getframe inspect.currentframe gc.get_objects
    pkgutil.resolve_name inspect.getmembers inspect.getattr_static pydoc.locate ctypes.cast"""
)
