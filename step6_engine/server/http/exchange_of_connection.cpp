#include "step6_engine/server/http/exchange_of_connection.h"

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/errors.h"

namespace ladder {

Exchange::Exchange(HttpRequest request, std::shared_ptr<IoThread> thread,
                   std::weak_ptr<Connection> connection, uint64_t number)
    : request_(std::move(request)),
      thread_(std::move(thread)),
      connection_(std::move(connection)),
      number_(number) {}

Exchange::~Exchange() {
  if (answered_) return;
  thread_->post([connection = connection_, number = number_] {
    if (const auto alive = connection.lock())
      alive->respond(number, error_response(500, "the server has a defect: it gave no answer"));
  });
}

void Exchange::claim() {
  LADDER_CHECK(!answered_.exchange(true), "{} {}: it was answered before", request_.method, request_.path);
}

Connection& Exchange::advancing() const {
  const auto connection = connection_.lock();
  LADDER_CHECK(connection != nullptr && thread_->is_this_thread() && connection->is_advancing(),
               "{} {}: only advance() writes a stream", request_.method, request_.path);
  return *connection;  // which cannot end within advance()
}

void Exchange::respond(HttpResponse response) {
  if (thread_->is_this_thread()) {
    const auto connection = connection_.lock();
    if (connection && connection->is_advancing()) return connection->end_with(std::move(response));
    claim();
    if (connection) connection->respond(number_, std::move(response));
    return;
  }
  claim();
  thread_->post([connection = connection_, number = number_,
                 response = std::make_shared<HttpResponse>(std::move(response))] {
    if (const auto alive = connection.lock()) alive->respond(number, std::move(*response));
  });
}

void Exchange::hold(std::unique_ptr<HttpAnswer> answer) {
  claim();
  const auto give = [self = shared_from_this(),
                     held = std::make_shared<std::unique_ptr<HttpAnswer>>(std::move(answer))] {
    if (const auto alive = self->connection_.lock()) alive->hold(self, std::move(*held));
  };
  if (thread_->is_this_thread()) return give();
  thread_->post(give);
}

std::function<void()> Exchange::waker() {
  auto wake = std::make_shared<Wake>();
  wake->connection = connection_;
  wake->exchange_number = number_;
  return [thread = thread_, wake] { thread->wake(wake); };
}

void run_handler(const ServerCore& core, const Route& route, const std::shared_ptr<Exchange>& exchange) {
  try {
    route.handler(exchange);
    return;
  } catch (const std::exception& error) {
    core.log_error(fmt::format("{} {}: {}", route.method, route.path, error.what()));
  }
  try {
    exchange->respond(error_response(500, "the server has a defect: see its log"));
  } catch (const Error&) {  // it had answered before it threw
  }
}

}  // namespace ladder
