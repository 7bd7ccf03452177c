#include "lab/performance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lab/lab_error.h"
#include "lab/performance_points.h"
#include "lab/salt.h"
#include "lab/sanitizer.h"

namespace lab {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

Limits race_limits(bool gpu) {
  if (gpu) return gpu_limits();
  Limits limits;
  limits.wall = std::chrono::seconds(120);
  return limits;
}

// What memcheck and racecheck say of the student's rung on a small problem; "" for nothing.
std::string found_in_race(const Task& task, const std::string& op, const Measuring& with) {
  const auto start = [&](const std::vector<std::string>& command) -> Outcome {
    if (!with.confined) return run(command, race_limits(true).wall);
    Folders folders;
    folders.readable = {with.student.race};
    folders.gpu = true;
    return run_confined(command, race_limits(true), folders, with.sandbox);
  };
  for (const char* tool : kSanitizerTools)
    if (const std::string found = found_by_sanitizer(
            with.sanitizer, tool, {with.student.race.string(), "once", op, task.race_rung}, start);
        !found.empty())
      return found;
  return "";
}

// The last line of what a judge prints. Error: it could not judge, which is no fault of the student's.
json judged(const std::vector<std::string>& command, const std::string& seed, const Measuring& with,
            const fs::path& judge, const fs::path& worker, bool gpu = false) {
  Confined ran;
  const Limits limits = race_limits(gpu);
  if (with.confined) {
    Folders folders;
    folders.readable = {judge, worker};
    folders.gpu = gpu;
    folders.input = seed + "\n";
    ran = run_confined(command, limits, folders, with.sandbox);
  } else {
    const fs::path script = "/bin/sh";
    std::vector<std::string> piped = {script, "-c", "seed=$1; shift; echo \"$seed\" | \"$@\"", "sh", seed};
    piped.insert(piped.end(), command.begin(), command.end());
    static_cast<Outcome&>(ran) = run(piped, limits.wall);
  }
  if (!ran.stopped.empty()) return {{"error", ran.stopped}};
  std::istringstream lines(ran.output);
  json last;
  for (std::string line; std::getline(lines, line);)
    if (const json parsed = json::parse(line, nullptr, false); parsed.is_object()) last = parsed;
  if (!ran.ok() || !last.is_object())
    throw LabError(judge.filename().string() + " could not measure:\n" + ran.output.substr(0, 2000));
  return last;
}

json counts_of(const std::string& problem, const fs::path& worker, const Measuring& with) {
  const std::string seed = to_hex(derive(with.salt, "counts/" + problem));
  return judged({with.pristine.counts, "judge", problem, "--", worker, "work"}, seed, with,
                with.pristine.counts, worker);
}

size_t num_measurements(const Task& task) {
  size_t count = task.race_ops.size();
  for (const std::string& problem : task.counts) count += counted_in(problem).size();
  return count;
}

std::string text_of(double value) {
  std::ostringstream text;
  text.precision(3);
  text << value;
  return text.str();
}

Part raced_part(const Task& task, const std::string& op, const json& result, double of,
                std::vector<std::string>& flags) {
  Part part{task.id, "performance", "race " + op + "/" + task.race_rung, 0, of, ""};
  if (result.contains("error")) {
    part.text = result.at("error");
    return part;
  }
  const double low = result.at("low"), share = result.at("share");
  part.text = text_of(result.at("ratio")) + " times the reference's time (between " + text_of(low) + " and " +
              text_of(result.at("high")) + "), " + text_of(100 * share) + " % of the roofline";
  for (const json& flag : result.at("flags")) {
    flags.push_back("task " + task.id + ", race " + op + ": " + flag.get<std::string>());
    part.text += "; not scored: " + flag.get<std::string>();
  }
  if (result.at("flags").empty()) part.points = of * raced_share(low, share);
  return part;
}

}  // namespace

bool has_performance(const Task& task) {
  return num_measurements(task) > 0;
}

std::string why_not_raced(const Task& task, const Machine& machine) {
  if (!task.gpu || task.race_ops.empty()) return "";
  if (!machine.gpu) return "task " + task.id + " is raced on a GPU, and there is none here";
  if (machine.sanitizer.empty())
    return "task " + task.id + " is raced on a GPU, which takes the CUDA toolkit's compute-sanitizer";
  return "";
}

std::vector<std::string> measuring_targets(const Task& task, const Machine& machine) {
  std::vector<std::string> targets;
  if (!why_not_raced(task, machine).empty()) return targets;
  if (!task.counts.empty()) targets.push_back("course_counts");
  if (!task.race_ops.empty()) targets.push_back("course_race");
  return targets;
}

MeasuredBuild measured_build(const fs::path& build_folder) {
  const fs::path bench = build_folder / "bench";
  return {bench / "course_counts" / "course_counts", bench / "course_race" / "course_race"};
}

std::vector<Part> counted_parts(const Task& task, const Measuring& with, std::vector<std::string>& flags) {
  std::vector<Part> parts;
  const double of = with.points / static_cast<double>(std::max<size_t>(num_measurements(task), 1));
  for (const std::string& problem : task.counts) {
    const json reference = counts_of(problem, with.pristine.counts, with);
    if (!reference.contains("counts"))
      throw LabError("the reference fails the counted problem '" + problem + "': " + reference.dump());
    const json seen = counts_of(problem, with.student.counts, with);
    for (const Counted& counted : counted_in(problem)) {
      Part part{task.id, "performance", problem + " " + counted.count, 0, of, ""};
      if (seen.contains("error")) {
        part.text = seen.at("error");
      } else {
        const int64_t count = seen.at("counts").at(counted.count),
                      expected = reference.at("counts").at(counted.count);
        part.points = of * counted_share(counted, count, expected);
        part.text = std::to_string(count) + ", the reference " + std::to_string(expected);
        // Twice as good as the reference: a better idea, or a count that is not true.
        if (counted.more_is_better ? count > 2 * expected + 10 : 2 * count + 10 < expected)
          flags.push_back("task " + task.id + ", " + part.name + ": " + part.text);
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

std::vector<Part> raced_parts(const Task& task, const Measuring& with, std::vector<std::string>& flags) {
  std::vector<Part> parts;
  const double of = with.points / static_cast<double>(std::max<size_t>(num_measurements(task), 1));
  std::string calls;
  for (const fs::path& object : with.objects)
    for (const std::string& name : library_calls(symbols_of(object)))
      calls += (calls.empty() ? "" : ", ") + name;
  if (!calls.empty()) flags.push_back("task " + task.id + " calls a library's kernel: " + calls);
  for (const std::string& op : task.race_ops) {
    if (!calls.empty()) {
      parts.push_back({task.id, "performance", "race " + op + "/" + task.race_rung, 0, of,
                       "not scored: it calls a library's kernel, " + calls});
      continue;
    }
    if (task.gpu)
      if (const std::string found = found_in_race(task, op, with); !found.empty()) {
        parts.push_back(
            {task.id, "performance", "race " + op + "/" + task.race_rung, 0, of, "not scored: " + found});
        continue;
      }
    const std::string seed = to_hex(derive(with.salt, "race/" + op));
    const json result =
        judged({with.pristine.race, "judge", op, task.race_rung, with.student.race, with.pristine.race}, seed,
               with, with.pristine.race, with.student.race, task.gpu);
    parts.push_back(raced_part(task, op, result, of, flags));
  }
  return parts;
}

std::vector<std::string> library_calls(const Symbols& object) {
  constexpr std::array<std::string_view, 9> kLibraries = {"cblas_", "dnnl",  "onednn", "mkl_",   "cublas",
                                                          "cudnn",  "sgemm", "dgemm",  "cutlass"};
  std::vector<std::string> found;
  for (const std::string& name : object.undefined)
    if (std::ranges::any_of(kLibraries,
                            [&](std::string_view part) { return name.find(part) != std::string::npos; }))
      found.push_back(name);
  return found;
}

}  // namespace lab
