#pragma once
// Grades as students, instructors and course systems read them.
#include <string>
#include <vector>

#include "lab/grade.h"

namespace lab {

std::string text_report(const Grade& grade);

// results.json of Gradescope's autograders: hidden tests are shown after the grades are published, flags only to the
// staff (extra_data).
std::string gradescope_report(const Grade& grade);

// The result of a test runner as GitHub Classroom's grading reporter takes it (there in base64): {"version": 1,
// "status", "max_score", "tests": [{"name", "status", "score", "message"}]}.
std::string classroom_report(const Grade& grade);

// One row for each hand-in and task, below one row of names.
std::string csv_report(const std::vector<Grade>& grades);

std::string points_text(double points);  // 7.5, 12, 0.33

}  // namespace lab
