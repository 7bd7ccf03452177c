#include <utility>

#include "step1_layers/core/error.h"
#include "step2_model/decoder/decoder_model.h"
#include "step2_model/loading/kv_scales.h"
#include "step2_model/loading/weight_loader.h"
#include "step2_model/model.h"

namespace ladder {

namespace {

std::unique_ptr<DecoderModel> load_decoder(const OpContext& ctx, const std::filesystem::path& directory,
                                           const DecoderSpec& spec, const ModelOptions& options) {
  if (options.load_format == LoadFormat::dummy) {
    auto model = std::make_unique<DecoderModel>(ctx, spec, options);
    fill_dummy_weights(model->parameters(), options.progress);
    model->process_after_load(ctx);
    return model;
  }
  const Checkpoint checkpoint(directory);  // before the memory is taken: a bad file is found at once
  check_kv_scales(checkpoint, spec);
  auto model = std::make_unique<DecoderModel>(ctx, spec, options);
  load_weights(checkpoint, spec, model->parameters(), options.progress);
  model->process_after_load(ctx);
  return model;
}

}  // namespace

std::unique_ptr<Model> load_model(const OpContext& ctx, const std::filesystem::path& directory,
                                  const DecoderSpec& spec, const ModelOptions& options) {
  auto decoder = load_decoder(ctx, directory, spec, options);
  if (options.makers.around_decoder) return options.makers.around_decoder(std::move(decoder));
  return decoder;
}

}  // namespace ladder
