#pragma once
// What CudaContext asks of cuBLASLt: a handle. The emulated device has no such library, and its rung is refused.
using cublasLtHandle_t = struct LadderEmulatedCublas*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0 };
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline const char* cublasLtGetStatusString(cublasStatus_t) {
  return "";
}
