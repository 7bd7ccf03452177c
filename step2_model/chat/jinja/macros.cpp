// Macros and call blocks.
#include <algorithm>

#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/scopes.h"

namespace ladder::jinja {

Value Interpreter::make_macro(const Statement& macro) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
    scope->captured = true;
  Scope* scope = scope_;
  return function(macro.name, [&macro, scope](Interpreter& interpreter, Arguments arguments) {
    return interpreter.call_macro(macro, scope, std::move(arguments));
  });
}

// {% call(x) wrap(1) %}body{% endcall %}: wrap gets the body as a macro named caller.
void Interpreter::execute_call_block(const Statement& block) {
  const Value caller = make_macro(block);
  emit(print(*this, evaluate_call(*block.expression, &caller)));
}

Value Interpreter::call_macro(const Statement& macro, Scope* parent, Arguments arguments) {
  const Level level(budget_);
  const NewScope scope(*this, parent);
  const int outer_line = line_, outer_loops = std::exchange(loops_, 0);
  std::vector<Value> rest;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < macro.parameters.size()) {
      store(*scope_, macro.parameters[i].symbol, std::move(arguments.positional[i]));
    } else {
      rest.push_back(std::move(arguments.positional[i]));
    }
  }
  if (!rest.empty() && !macro.takes_rest)
    refuse("the macro {} takes at most {} arguments, found {}", macro.name, macro.parameters.size(),
           macro.parameters.size() + rest.size());
  Dict::Items keywords;
  bool has_caller = false;
  for (auto& [name, value] : arguments.named) {
    const auto parameter = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                        [&](const Parameter& p) { return p.name == name; });
    if (parameter != macro.parameters.end()) {
      if (parameter - macro.parameters.begin() < std::ssize(arguments.positional))
        refuse("the macro {}: the argument {} is given twice", macro.name, name);
      store(*scope_, parameter->symbol, std::move(value));
    } else if (name == "caller" && macro.takes_caller) {
      has_caller = true;
      store(*scope_, 1, std::move(value));
    } else if (macro.takes_keywords) {
      keywords.emplace_back(text(name), std::move(value));
    } else {
      refuse("the macro {} has no argument {}", macro.name, name);
    }
  }
  if (macro.takes_caller && !has_caller) store(*scope_, 1, Value::undefined("caller"));
  if (macro.takes_rest) store(*scope_, 2, list(std::move(rest), Sequence::tuple));
  if (macro.takes_keywords) store(*scope_, 3, dict(std::move(keywords)));
  for (size_t i = arguments.positional.size(); i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const auto& names = scope_->names;
    if (std::any_of(names.begin(), names.end(),
                    [&](const auto& name) { return name.first == parameter.symbol; }))
      continue;
    Value value =
        parameter.otherwise != nullptr ? evaluate(*parameter.otherwise) : Value::undefined(parameter.name);
    store(*scope_, parameter.symbol, std::move(value));
  }
  const Capture capture(*this);
  execute(macro.body);
  line_ = outer_line;
  loops_ = outer_loops;
  return text(capture.text());
}

}  // namespace ladder::jinja
