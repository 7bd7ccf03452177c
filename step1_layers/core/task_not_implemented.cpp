#include "step1_layers/core/task_not_implemented.h"

#include <string>

namespace ladder {

TaskNotImplemented::TaskNotImplemented(const char* task, const char* file, int line)
    : std::logic_error("task " + std::string(task) + " is not implemented (" +
                       std::string(file).substr(std::string_view(file).rfind('/') + 1) + ":" +
                       std::to_string(line) + ")") {}

TaskNotImplemented::~TaskNotImplemented() = default;

// Set before any other code runs, so that objects of other files can add themselves to it.
constinit const UnwrittenRung* UnwrittenRung::first_ = nullptr;

UnwrittenRung::UnwrittenRung(const char* op, const char* rung) : op_(op), rung_(rung), next_(first_) {
  first_ = this;
}

}  // namespace ladder
