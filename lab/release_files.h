#pragma once
// The files of a release that differ from the project's, apart from stubs.
#include <filesystem>
#include <string>

#include "lab/course.h"
#include "lab/leaks.h"
#include "lab/release_info.h"

namespace lab {

// Deletes in a copy of the tree what students must not have (defects, reports, hidden tests) or cannot use (the course's
// own tests, the tools that look after it), and what stands in pages between `<!-- instructor -->` and
// `<!-- /instructor -->`.
void leave_out(const std::filesystem::path& tree);

// lab/release/tree, and the workflow by which GitHub Classroom tests the tasks of these labs.
void add_course_files(const std::filesystem::path& tree, const Course& course, const ReleaseInfo& info);

// Error, naming file and line: a line of the removed bodies stands somewhere in the tree.
void expect_no_leaks(const std::filesystem::path& tree, RemovedLines removed);

}  // namespace lab
