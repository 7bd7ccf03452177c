#include "step2_model/chat/jinja/unset_names.h"

#include <set>

namespace ladder::jinja {
namespace {

// A body with a scope of its own, and the names that are mentioned at its level: those of bodies further in are not.
class Frame {
 public:
  explicit Frame(const Frame* outer) : outer_(outer) {}

  void parameter(int symbol) { mentioned_.insert(symbol); }
  void parameter(const Target& target) {
    if (target.elements.empty()) parameter(target.symbol);
    for (const Target& element : target.elements) parameter(element);
  }

  void analyze(Body& body) {
    visit(body, false);
    body.unset = std::move(unset_);
    for (const auto& statement : body.statements) enter(*statement);
  }

 private:
  bool is_mentioned_around(int symbol) const {
    for (const Frame* frame = outer_; frame != nullptr; frame = frame->outer_)
      if (frame->mentioned_.contains(symbol)) return true;
    return false;
  }

  void read(const Expression& node) {
    if (node.kind == Expression::Kind::name) mentioned_.insert(node.symbol);
    for (const ExpressionPtr& operand : node.operands)
      if (operand != nullptr) read(*operand);
    for (const auto& [name, value] : node.named) read(*value);
  }

  void set(int symbol, bool within_if) {
    if (mentioned_.insert(symbol).second && !within_if && !is_mentioned_around(symbol))
      unset_.push_back(symbol);
  }
  void set(const Target& target, bool within_if) {
    if (!target.attribute.empty()) {
      mentioned_.insert(target.symbol);
    } else if (target.elements.empty()) {
      set(target.symbol, within_if);
    }
    for (const Target& element : target.elements) set(element, within_if);
  }

  // The names of this level in the order in which jinja2 comes across them.
  void visit(const Body& body, bool within_if) {
    for (const auto& statement : body.statements) {
      if (statement->expression != nullptr && statement->kind != Statement::Kind::set_block)
        read(*statement->expression);
      for (const auto& [target, value] : statement->assignments) read(*value);
      if (statement->kind == Statement::Kind::set || statement->kind == Statement::Kind::set_block)
        set(statement->target, within_if);
      if (statement->kind == Statement::Kind::macro) set(statement->symbol, within_if);
      for (const Statement::Branch& branch : statement->branches) {
        if (branch.condition != nullptr) read(*branch.condition);
        visit(branch.body, true);
      }
    }
  }

  // The bodies within this one that have scopes of their own.
  void enter(Statement& statement) const {
    for (Statement::Branch& branch : statement.branches)
      for (const auto& inner : branch.body.statements) enter(*inner);
    Frame body(this), otherwise(this);
    if (statement.kind == Statement::Kind::loop) body.parameter(statement.target);
    for (const Parameter& parameter : statement.parameters) body.parameter(parameter.symbol);
    for (const Parameter& parameter : statement.parameters)
      if (parameter.otherwise != nullptr) body.read(*parameter.otherwise);
    for (const auto& [target, value] : statement.assignments) body.parameter(target);
    body.analyze(statement.body);
    otherwise.analyze(statement.otherwise);
  }

  const Frame* outer_;
  std::set<int> mentioned_;
  std::vector<int> unset_;
};

}  // namespace

void find_unset_names(Tree& tree) {
  Frame(nullptr).analyze(tree.body);
}

}  // namespace ladder::jinja
