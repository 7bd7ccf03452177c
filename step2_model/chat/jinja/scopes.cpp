// The names that a template sees, and where its text goes.
#include "step2_model/chat/jinja/scopes.h"

namespace ladder::jinja {

Interpreter::Interpreter(const Tree& tree, const Limits& limits)
    : tree_(tree), budget_(limits), globals_(tree.names.size()) {}

namespace {

constexpr size_t kNameBytes = 2 * sizeof(std::pair<int, Value>);  // of a scope, which grows by doubling

}  // namespace

// Namespaces may hold each other, and long chains of them; macros hold scopes.
Interpreter::~Interpreter() {
  for (Scope& scope : scopes_) scope.names.clear();
  for (const auto& space : namespaces_) space->attributes.clear();
}

void Interpreter::define(std::string_view name, Value value) {
  for (size_t symbol = 0; symbol < tree_.names.size(); ++symbol)
    if (tree_.names[symbol] == name) globals_[symbol] = std::move(value);
}

const Value* Interpreter::find(int symbol) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    budget_.look_up(scope->names.size());
    for (const auto& [name, value] : scope->names)
      if (name == symbol) return &value;
  }
  const std::optional<Value>& global = globals_[static_cast<size_t>(symbol)];
  return global ? &*global : nullptr;
}

Scope* Interpreter::new_scope(Scope* parent) {
  if (free_scopes_.empty()) {
    budget_.hold(sizeof(Scope));
    free_scopes_.push_back(&scopes_.emplace_back());
  }
  Scope* scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->parent = parent;
  return scope;
}

void Interpreter::end_scope(Scope* scope) {
  if (scope->captured) return;
  budget_.release(kNameBytes * scope->names.size());
  scope->names.clear();
  free_scopes_.push_back(scope);
}

void Interpreter::store(Scope& scope, int symbol, Value value) {
  budget_.look_up(scope.names.size());
  for (auto& [name, old] : scope.names)
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  budget_.hold(kNameBytes);
  scope.names.emplace_back(symbol, std::move(value));
}

void Interpreter::emit(const Text& text) {
  budget_.touch(text.size());
  if (static_cast<int64_t>(out_->size() + text.size()) > budget_.limits().output)
    refuse("more than {} bytes of text", budget_.limits().output);
  budget_.hold(text.size());
  out_->append(text);
}

Text Interpreter::run() {
  const NewScope scope(*this);
  const Capture capture(*this);
  execute(tree_.body);
  return capture.text();
}

}  // namespace ladder::jinja
