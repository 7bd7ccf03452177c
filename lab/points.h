#pragma once
// How a task's points are divided: 50 % public tests, 20 % hidden tests, 20 % performance, 10 % bug lab or written
// question. What a task has not is given to its public tests.
#include "lab/course.h"

namespace lab {

struct Shares {
  double published = 0, hidden = 0, performance = 0, bug = 0;  // points
};

struct HasParts {
  bool hidden = false, performance = false, bug = false;
};

Shares shares_of(double points, const HasParts& has);

}  // namespace lab
