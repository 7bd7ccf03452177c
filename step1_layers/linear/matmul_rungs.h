#pragma once
// The CPU rungs of matmul.h's table. Their arguments have been checked.
#include "step1_layers/linear/matmul.h"

namespace ladder {

void matmul_loop(const OpContext& ctx, const MatmulArgs& args);

int64_t matmul_panels_workspace(const MatmulArgs& args);  // of the three that follow
void matmul_portable(const OpContext& ctx, const MatmulArgs& args);
#if defined(__x86_64__)
void matmul_avx2(const OpContext& ctx, const MatmulArgs& args);
void matmul_avx512(const OpContext& ctx, const MatmulArgs& args);
#endif

#ifdef LADDER_HAS_ONEDNN
bool matmul_onednn_supports(const MatmulArgs& args);
bool matmul_onednn_takes_amx(const MatmulArgs& args);
int64_t matmul_onednn_workspace(const MatmulArgs& args);
void matmul_onednn(const OpContext& ctx, const MatmulArgs& args);
#endif

}  // namespace ladder
