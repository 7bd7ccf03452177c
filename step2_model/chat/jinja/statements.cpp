// Task 2.6.statements: what each statement of a template does.
#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/scopes.h"

namespace ladder::jinja {

// >>> task 2.6.statements: loops with their scopes, conditions, assignments, blocks whose text becomes a value
void Interpreter::assign(const Target& target, Value value) {
  if (!target.elements.empty()) {
    const std::shared_ptr<List> values = iterate(value);
    if (values->items.size() != target.elements.size())
      refuse("expected {} values to assign, found {}", target.elements.size(), values->items.size());
    for (size_t i = 0; i < values->items.size(); ++i) assign(target.elements[i], values->items[i]);
    return;
  }
  if (target.attribute.empty()) return store(*scope_, target.symbol, std::move(value));
  const Value* holder = find(target.symbol);
  Namespace* space = holder == nullptr ? nullptr : holder->name_space();
  if (space == nullptr) refuse("{} is no namespace, so {} cannot be set", target.name, target.attribute);
  set_attribute(*space, target.attribute, std::move(value));
}

Interpreter::Flow Interpreter::execute_loop(const Statement& statement) {
  std::shared_ptr<List> items = iterate(evaluate(*statement.expression));
  if (statement.condition != nullptr) {
    std::vector<Value> chosen;
    for (const Value& item : items->items) {
      budget_.step();
      const NewScope scope(*this);
      assign(statement.target, item);
      if (is_true(evaluate(*statement.condition))) chosen.push_back(item);
    }
    items = list(std::move(chosen)).shared<List>();
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = items;
  loop->nesting = loops_++;
  bool completed = false;  // Jinja's else runs where no body came to its end, be it for breaks and continues
  for (; loop->index < items->items.size(); ++loop->index) {
    budget_.step();
    const NewScope scope(*this);
    store(*scope_, 0, Value(loop));
    assign(statement.target, items->items[loop->index]);
    const Flow flow = execute(statement.body);
    if (flow == Flow::loop_break) break;
    completed = completed || flow == Flow::next;
  }
  --loops_;
  if (completed) return Flow::next;
  const NewScope scope(*this);
  return execute(statement.otherwise);
}

Text Interpreter::captured(const Body& body) {
  const NewScope scope(*this);
  const Capture capture(*this);
  execute(body);
  return capture.text();
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  using Kind = Statement::Kind;
  budget_.step();
  line_ = statement.line;
  switch (statement.kind) {
    case Kind::data:
      emit(statement.value.string()->text);
      break;
    case Kind::output: {
      const Value value = evaluate(*statement.expression);
      if (const String* string = value.string()) {
        emit(string->text);
      } else {
        emit(print(*this, value));
      }
      break;
    }
    case Kind::condition:
      for (const Statement::Branch& branch : statement.branches)
        if (branch.condition == nullptr || is_true(evaluate(*branch.condition))) return execute(branch.body);
      break;
    case Kind::loop:
      return execute_loop(statement);
    case Kind::set:
      assign(statement.target, evaluate(*statement.expression));
      break;
    case Kind::set_block:
      assign(statement.target,
             statement.expression != nullptr ? text(filtered(statement)) : text(captured(statement.body)));
      break;
    case Kind::with: {
      // The values are those of outside: `with a = 1, b = a` does not see its own a.
      std::vector<Value> values;
      for (const auto& [target, expression] : statement.assignments) values.push_back(evaluate(*expression));
      const NewScope scope(*this);
      for (size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].first, values[i]);
      return execute(statement.body);
    }
    case Kind::macro:
      store(*scope_, statement.symbol, make_macro(statement));
      break;
    case Kind::call_block:
      execute_call_block(statement);
      break;
    case Kind::filter_block:
      emit(filtered(statement));
      break;
    case Kind::scope: {
      const NewScope scope(*this);
      return execute(statement.body);
    }
    case Kind::loop_break:
      return Flow::loop_break;
    case Kind::loop_continue:
      return Flow::loop_continue;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  const Level level(budget_);
  for (const int symbol : body.unset) store(*scope_, symbol, Value::undefined(name_of(symbol)));
  for (const auto& statement : body.statements)
    if (const Flow flow = execute(*statement); flow != Flow::next) return flow;
  return Flow::next;
}
// <<< task 2.6.statements

// The text of a block through the filters in its tag, the innermost first.
Text Interpreter::filtered(const Statement& block) {
  const Value content = text(captured(block.body));
  return print(*this, evaluate_filter(*block.expression, &content));
}

}  // namespace ladder::jinja
