#pragma once
// Launches of kernels whose blocks form clusters of a size that the launch chooses.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

// launch_kernel() (cuda_kernel.cuh) with `blocks` blocks, a multiple of `of_cluster`, of which so many neighbours are a cluster.
template <class Params>
void launch_in_clusters(const OpContext& ctx, void (*kernel)(Params), int of_cluster, int blocks, int threads,
                        int shared_bytes, const std::type_identity_t<Params>& params) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream_of(ctx);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(of_cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = ctx.dependent_launch ? 2 : 1;
  LADDER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace ladder
