// Errors of the library. Everything that Gradweave throws derives from gradweave::Error.
// An infeasible result (a planner without a plan, a plan with violations) is data, never an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace gradweave {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's input is wrong. The message reads "where: what; remedy". The command line exits with 2.
class InvalidInput : public Error {
 public:
  // `what`: the fault. `where`: file and JSON key ("plan.json: period[0].ops[3].link"), option or argument.
  // `remedy`: what the user can do about it; may be empty.
  InvalidInput(std::string_view what, std::string_view where, std::string_view remedy = {});

  // The parts of the message, as they were given: `fault` is `what` without place and remedy.
  const std::string& fault() const { return fault_; }
  const std::string& where() const { return where_; }
  const std::string& remedy() const { return remedy_; }

  // Returns the same error with `prefix` (a file name) put before `where`.
  InvalidInput within(std::string_view prefix) const;

 private:
  std::string fault_, where_, remedy_;
};

// Gradweave itself is at fault: what it made does not pass its own check. The command line exits with 1.
class InternalError : public Error {
 public:
  using Error::Error;
};

// The environment failed while correct input was processed (disk full, peer lost).
class RuntimeFailure : public Error {
 public:
  using Error::Error;
};

}  // namespace gradweave
