// A body becomes a plan, the plan's requests become streams, and the streams an answer that the connection holds:
//
//   refuse at once if no more may wait
//   plan = completion_plan(body)
//   for each request: streams.push(client.submit(request, wake))
//   exchange.hold(GenerationAnswer(plan, streams))
#include "step6_engine/server/openai/openai_routes.h"

#include <fmt/format.h>

#include <utility>

#include "step6_engine/server/openai/api_error.h"
#include "step6_engine/server/openai/generation_answer.h"
#include "step6_engine/server/openai/generation_bodies.h"
#include "step6_engine/server/openai/json_text.h"
#include "step6_engine/server/openai/tokenize.h"

namespace ladder {

namespace {

using Exchange = std::shared_ptr<HttpExchange>;
using Model = std::shared_ptr<const ServedModel>;
using PlanMaker = GenerationPlan (*)(const HttpRequest&, Model);

// Before a byte of the body is looked at.
void check_room(const EngineClient& client) {
  const EngineStats stats = client.stats();
  if (!stats.error.empty() || stats.stopped) throw EngineUnavailable("");
  if (!stats.queue_full.empty()) throw QueueFull(stats.queue_full);
}

void generate(const Exchange& exchange, EngineClient& client, const Model& model, PlanMaker plan_of) {
  with_api_errors(*exchange, model->folder, [&] {
    check_room(client);
    GenerationPlan plan = plan_of(exchange->request(), model);
    std::vector<RequestStream> streams;
    for (Request& request : plan.requests) {
      request.output_only = !plan.answer.stream;
      streams.push_back(client.submit(request, exchange->waker()));
    }
    exchange->hold(std::make_unique<GenerationAnswer>(client, std::move(plan.answer), std::move(streams)));
  });
}

std::string model_card(const ServedModel& model, const std::string& name) {
  std::string card = "{\"id\":";
  append_json_string(card, name);
  card +=
      fmt::format(",\"object\":\"model\",\"created\":{},\"owned_by\":\"ladder\",\"root\":", model.created);
  append_json_string(card, model.names.front());
  card += fmt::format(",\"parent\":null,\"max_model_len\":{},\"permission\":[]}}", model.max_model_len);
  return card;
}

void add_model_routes(Router& router, const Model& model) {
  const auto add = [&router](std::string path, std::string body) {
    router.add({.method = "GET",
                .path = std::move(path),
                .handler = [body = std::move(body)](const Exchange& exchange) {
                  exchange->respond({.body = body});
                }});
  };
  std::string cards;
  for (const std::string& name : model->names) {
    const std::string card = model_card(*model, name);
    add("/v1/models/" + name, card);
    cards += (cards.empty() ? "" : ",") + card;
  }
  add("/v1/models", "{\"object\":\"list\",\"data\":[" + cards + "]}");
}

}  // namespace

void add_openai_routes(Router& router, EngineClient& client, std::shared_ptr<const ServedModel> model,
                       OpenAiOptions options) {
  add_model_routes(router, model);
  const auto add_generation = [&](std::string path, PlanMaker plan_of) {
    router.add({.method = "POST",
                .path = std::move(path),
                .runs_on = RunsOn::worker,
                .handler = [&client, model, plan_of](const Exchange& exchange) {
                  generate(exchange, client, model, plan_of);
                }});
  };
  add_generation("/v1/completions", completion_plan);
  add_generation("/v1/chat/completions", chat_plan);

  const auto add_text = [&](std::string path, std::string (*answer)(const HttpRequest&, const ServedModel&)) {
    router.add({.method = "POST",
                .path = std::move(path),
                .runs_on = RunsOn::worker,
                .handler = [model, answer](const Exchange& exchange) {
                  with_api_errors(*exchange, model->folder,
                                  [&] { exchange->respond({.body = answer(exchange->request(), *model)}); });
                }});
  };
  add_text("/tokenize", tokenize_answer);
  add_text("/detokenize", detokenize_answer);
  if (options.tokenizer_info)
    router.add({.method = "GET", .path = "/tokenizer_info", .handler = [model](const Exchange& exchange) {
                  exchange->respond({.body = model->tokenizer_info});
                }});
}

}  // namespace ladder
