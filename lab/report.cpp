#include "lab/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lab {
namespace {

using Json = nlohmann::ordered_json;

std::string joined(const std::vector<std::string>& lines, const std::string& between) {
  std::string all;
  for (const std::string& line : lines) all += (all.empty() ? "" : between) + line;
  return all;
}

// A test that brings nothing where it passes has a text where it fails.
bool is_full(const Part& part) {
  return part.points >= part.of - 1e-9 && (part.of > 0 || part.text.empty());
}

// Points come in thirds and sevenths; sums must come out even.
double rounded(double points) {
  return std::round(points * 1e4) / 1e4;
}

std::string dump(const Json& all) {
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// What a test says can hold a student's bytes; a terminal would take some of them for commands.
std::string without_controls(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\t') || c == 0x7f; }, '?');
  return text;
}

std::string csv_field(const std::string& text) {
  // What begins so is a formula to a spreadsheet, and students choose names.
  const bool formula = !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos;
  if (!formula && text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = formula ? "\"'" : "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string points_text(double points) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", points + (points < 0 ? -1e-9 : 1e-9));
  std::string shown = text;
  while (shown.ends_with('0')) shown.pop_back();
  if (shown.ends_with('.')) shown.pop_back();
  return shown;
}

std::string text_report(const Grade& grade) {
  std::ostringstream out;
  out << grade.student << ": " << points_text(grade.points()) << " of " << points_text(grade.of())
      << " points  (" << grade.hand_in << ")\n";
  for (const std::string& line : grade.errors) out << "  error: " << line << "\n";
  for (const std::string& line : grade.flags) out << "  flag: " << line << "\n";
  for (const std::string& task : grade.tasks) {
    std::map<std::string, std::pair<double, double>> sums;
    std::vector<std::string> order;
    int passed = 0, all = 0;
    for (const Part& part : grade.parts) {
      if (part.task != task) continue;
      if (!sums.contains(part.part)) order.push_back(part.part);
      sums[part.part].first += part.points;
      sums[part.part].second += part.of;
      passed += is_full(part);
      ++all;
    }
    out << "task " << task << ":";
    for (const std::string& name : order)
      out << (name == order.front() ? " " : ", ") << name << " " << points_text(sums[name].first) << "/"
          << points_text(sums[name].second);
    out << "; " << passed << " of " << all << " passed\n";
    for (const Part& part : grade.parts) {
      if (part.task != task || is_full(part)) continue;
      out << "  " << points_text(part.points) << "/" << points_text(part.of) << "  "
          << (part.part == "public" ? "" : part.part + " ") << part.name << "\n";
      std::istringstream lines(part.text);
      for (std::string line; std::getline(lines, line);) out << "        " << line << "\n";
    }
  }
  return without_controls(out.str());
}

std::string gradescope_report(const Grade& grade) {
  Json all;
  all["score"] = rounded(grade.points());
  all["output"] = joined(grade.errors, "\n");
  all["stdout_visibility"] = "hidden";
  all["extra_data"] = {{"flags", grade.flags}};
  all["tests"] = Json::array();
  for (const Part& part : grade.parts) {
    Json test = {
        {"name", "task " + part.task + ": " + (part.part == "public" ? "" : part.part + " ") + part.name},
        {"score", rounded(part.points)},
        {"max_score", rounded(part.of)},
        {"status", is_full(part) ? "passed" : "failed"},
        {"output", part.text}};
    test["visibility"] = part.part == "hidden" ? "after_published" : "visible";
    all["tests"].push_back(test);
  }
  return dump(all);
}

std::string classroom_report(const Grade& grade) {
  Json all = {
      {"version", 1}, {"status", "pass"}, {"max_score", rounded(grade.of())}, {"tests", Json::array()}};
  for (const Part& part : grade.parts) {
    const bool full = is_full(part);
    if (!full) all["status"] = "fail";
    Json test = {
        {"name", "task " + part.task + ": " + (part.part == "public" ? "" : part.part + " ") + part.name},
        {"status", full ? "pass" : "fail"},
        {"score", rounded(part.points)}};
    if (!part.text.empty()) test["message"] = part.text;
    all["tests"].push_back(test);
  }
  for (const std::string& line : grade.errors) {
    all["status"] = "error";
    all["tests"].push_back({{"name", "hand-in"}, {"status", "error"}, {"score", 0}, {"message", line}});
  }
  return dump(all);
}

std::string csv_report(const std::vector<Grade>& grades) {
  const std::vector<std::string> kinds = {"public", "hidden", "performance", "bug"};
  std::string rows = "student,hand_in,task,points,of";
  for (const std::string& kind : kinds) rows += "," + kind + "," + kind + "_of";
  rows += ",errors,flags\n";
  for (const Grade& grade : grades) {
    std::vector<std::string> tasks = grade.tasks;
    if (tasks.empty()) tasks.push_back("");
    for (const std::string& task : tasks) {
      std::map<std::string, std::pair<double, double>> sums;
      double points = 0, of = 0;
      for (const Part& part : grade.parts)
        if (part.task == task) {
          sums[part.part].first += part.points, sums[part.part].second += part.of;
          points += part.points, of += part.of;
        }
      rows += csv_field(grade.student) + "," + csv_field(grade.hand_in) + "," + task + "," +
              points_text(points) + "," + points_text(of);
      for (const std::string& kind : kinds)
        rows += sums.contains(kind)
                    ? "," + points_text(sums[kind].first) + "," + points_text(sums[kind].second)
                    : ",,";
      rows += "," + csv_field(joined(grade.errors, "; ")) + "," + csv_field(joined(grade.flags, "; ")) + "\n";
    }
  }
  return rows;
}

}  // namespace lab
