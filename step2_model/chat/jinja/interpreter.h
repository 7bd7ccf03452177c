#pragma once
// Walks a template's tree: one run of a template on one conversation.
//
// Names live in scopes: a loop's body, a macro's, a block's have one of their own; `if` has none. An assignment writes
// to the innermost scope, so that nothing leaves a loop but through a namespace.
#include <chrono>
#include <deque>
#include <span>

#include "step2_model/chat/jinja/tree.h"

namespace ladder::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> names;
  bool captured = false;  // a macro was defined here or further in: the scope stays until the run ends
};

class Interpreter {
 public:
  Interpreter(const Tree& tree, const Limits& limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  // A name that every scope sees: messages, tools, bos_token.
  void define(std::string_view name, Value value);
  // The whole text. Refusal where the template refuses, or asks for what it must not; line() says where.
  Text run();

  // One expression of the tree, with the names that are seen where the run has come to.
  Value evaluate(const Expression& node);

  Budget& budget() { return budget_; }
  int line() const { return line_; }

  // New values, held against the budget.
  Value text(Text content, bool markup = false);
  Value text(std::string_view bytes, Origin origin = Origin::trusted) { return text(Text(bytes, origin)); }
  Value list(std::vector<Value> items, Sequence kind = Sequence::list, Origin origin = Origin::trusted);
  Value dict(Dict::Items items, Origin origin = Origin::trusted);
  Value function(std::string name, std::function<Value(Interpreter&, Arguments)> call, int depth = 1);
  Value name_space(std::vector<std::pair<std::string, Value>> attributes);

  // value.name and value[key] (attributes.cpp). An undefined value where there is none, Refusal where `value` itself is
  // undefined.
  Value attribute(const Value& value, std::string_view name);
  void set_attribute(Namespace& space, const std::string& name, Value value);
  Value item(const Value& value, const Value& key);
  Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
  // What a loop goes over: the elements of a sequence, a dict's keys, a text's characters; Refusal for anything else.
  // An iterator is used up by it.
  std::shared_ptr<List> iterate(const Value& value);
  Value call(const Value& callee, Arguments arguments);

  // a op b (operators.cpp): + - * / // % **
  Value binary(std::string_view op, const Value& a, const Value& b);
  bool contains(const Value& container, const Value& element);

 private:
  enum class Flow : uint8_t { next, loop_break, loop_continue };
  class Capture;
  class NewScope;

  // Statements (statements.cpp, macros.cpp). Each of them is a step of the budget, and so is each turn of a loop, also
  // one that its condition leaves out; a body is a level of depth.
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_loop(const Statement& loop);
  Text captured(const Body& body);
  Text filtered(const Statement& block);
  void assign(const Target& target, Value value);
  Value make_macro(const Statement& macro);
  Value call_macro(const Statement& macro, Scope* scope, Arguments arguments);
  void execute_call_block(const Statement& block);
  void emit(const Text& text);

  // Expressions (expressions.cpp).
  Value evaluate_call(const Expression& node, const Value* caller = nullptr);
  Value evaluate_filter(const Expression& node, const Value* subject);
  bool evaluate_test(const Expression& node);
  bool evaluate_compare(const Expression& node);
  Value evaluate_dict(const Expression& node);
  Arguments evaluate_arguments(const Expression& node);

  const std::string& name_of(int symbol) const { return tree_.names[static_cast<size_t>(symbol)]; }
  const Value* find(int symbol);
  Scope* new_scope(Scope* parent);
  void end_scope(Scope* scope);
  void store(Scope& scope, int symbol, Value value);

  const Tree& tree_;
  Budget budget_;  // before all values: they give their memory back to it
  int line_ = 1;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::optional<Value>> globals_;  // by symbol
  Scope* scope_ = nullptr;
  Text* out_ = nullptr;
  int loops_ = 0;
};

// The functions and constants that every template sees: range, dict, namespace, raise_exception, strftime_now, ...
// strftime_now tells `now`, in the machine's local time; without it the 26th of July 2024.
void define_functions(Interpreter& interpreter, std::optional<std::chrono::system_clock::time_point> now);

}  // namespace ladder::jinja
