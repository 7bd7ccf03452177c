#pragma once
// Ranks of this process that tell a listener what each layer has stored (kv_layer_listener.h). Decoder and runner know nothing of
// it: an attention around each layer's own tells, when that returns. On a GPU it returns long before anything is stored: events say
// when it is, and another thread tells (kv_layer_events_cuda.h).
#include <memory>

#include "step2_model/model_makers.h"
#include "step4_runner/kv_layer_listener.h"

namespace ladder {

class TellingRanks {
 public:
  explicit TellingRanks(KvLayerListener& listener);
  ~TellingRanks();

  // What `makers` make, around which the attention tells; it outlives this. Error, as a model is made: it is that of a second rank
  // on a GPU.
  ModelMakers around(ModelMakers makers);
  // What was stored by now has been told. Called between a step's end and what follows from it: a block that the step has written
  // may be given to another request then, and must not be told as stored for that one.
  void catch_up();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace ladder
