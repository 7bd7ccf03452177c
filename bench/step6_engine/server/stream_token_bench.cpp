// What a streamed token costs after the engine has its text: taking the update, its JSON, and the bytes of the event.
// And what a body of a megabyte costs before the engine sees it.
#include <benchmark/benchmark.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "step6_engine/server/openai/chunk_writer.h"
#include "step6_engine/server/openai/generation_answer.h"
#include "step6_engine/server/openai/generation_bodies.h"
#include "step6_engine/server/openai/json_text.h"

namespace ladder {
namespace {

std::shared_ptr<ServedModel> some_model() {
  auto model = std::make_shared<ServedModel>();
  model->names = {"Qwen/Qwen3-0.6B"};
  model->max_model_len = int64_t{1} << 20;
  model->vocab_size = 151'936;
  return model;
}

AnswerPlan plan_of(Api api) {
  AnswerPlan plan;
  plan.api = api;
  plan.id = "cmpl-0123456789abcdef0123456789abcdef";
  plan.created = 1'700'000'000;
  plan.model = some_model();
  plan.stream = true;
  plan.include_usage = true;
  plan.prompts.push_back({.num_tokens = 100, .echo = {}});
  return plan;
}

CompletionUpdate token_update() {
  CompletionUpdate update;
  update.token_ids = {17};
  update.text = " lives in";
  return update;
}

void BM_JsonString(benchmark::State& state) {
  const std::string text(static_cast<size_t>(state.range(0)), 'a');
  std::string out;
  for (auto _ : state) {
    out.clear();
    append_json_string(out, text);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_JsonString)->Arg(8)->Arg(4096);

// The JSON of one chunk: 0 completions, 1 chat.
void BM_Chunk(benchmark::State& state) {
  const AnswerPlan plan = plan_of(state.range(0) == 0 ? Api::completions : Api::chat);
  ChunkWriter writer(plan);
  const CompletionUpdate update = token_update();
  std::string out;
  for (auto _ : state) {
    out.clear();
    writer.write(out, 0, update);
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(BM_Chunk)->Arg(0)->Arg(1);

class NoEngine final : public EngineClient {
 public:
  RequestStream submit(const Request&, std::function<void()>) override { fail("no engine"); }
  void abort(const RequestId&) override {}
  EngineStats stats() const override { return {}; }
  void pause() override {}
  void resume() override {}
  bool reset_prefix_cache() override { return true; }
  void stop(std::chrono::milliseconds) override {}
};

// A connection that is one write() of each piece to a socket, whose other end reads.
class SocketExchange final : public HttpExchange {
 public:
  explicit SocketExchange(int socket) : socket_(socket) {}
  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse) override {}
  void hold(std::unique_ptr<HttpAnswer>) override {}
  std::function<void()> waker() override {
    return [] {};
  }
  void begin(HttpResponse) override {}
  void write(std::string_view bytes) override {
    benchmark::DoNotOptimize(::send(socket_, bytes.data(), bytes.size(), 0));
  }
  void finish() override {}

 private:
  HttpRequest request_;
  int socket_;
};

// From the engine's push to the bytes in a socket, all host work of a token but detokenising.
void BM_StreamedToken(benchmark::State& state) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return state.SkipWithError("no sockets");
  NoEngine engine;
  const auto buffer = std::make_shared<StreamBuffer>([] {});
  std::vector<RequestStream> streams;
  streams.emplace_back("1", buffer, [] {});
  GenerationAnswer answer(engine, plan_of(Api::completions), std::move(streams));
  SocketExchange exchange(sockets[0]);
  std::string bytes(1 << 16, '\0');
  int64_t count = 0;
  for (auto _ : state) {
    buffer->push(token_update());
    answer.advance(exchange);
    if (++count % 64 == 0)  // the reader's part is small then
      benchmark::DoNotOptimize(::recv(sockets[1], bytes.data(), bytes.size(), 0));
  }
  ::close(sockets[0]);
  ::close(sockets[1]);
}
BENCHMARK(BM_StreamedToken);

// A body of a megabyte of token ids: parsed, checked, planned.
void BM_MegabyteOfIds(benchmark::State& state) {
  HttpRequest request{.headers = {{"Content-Type", "application/json"}}, .body = "{\"prompt\":[1"};
  while (request.body.size() < (1 << 20)) request.body += ",12345";
  request.body += "],\"max_tokens\":16}";
  const std::shared_ptr<const ServedModel> model = some_model();
  for (auto _ : state) benchmark::DoNotOptimize(completion_plan(request, model));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(request.body.size()));
}
BENCHMARK(BM_MegabyteOfIds)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ladder
