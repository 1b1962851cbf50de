#include "testing/cbc.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace gradweave::testing {

bool cbc_available() { return std::system("command -v cbc >/dev/null 2>&1") == 0; }

std::optional<double> solve_with_cbc(const std::string& lp_model) {
  std::string folder = (std::filesystem::temp_directory_path() / "gradweave-cbc-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make a folder for cbc");
  const std::string model = folder + "/model.lp";
  const std::string solution = folder + "/solution.txt";
  std::ofstream(model) << lp_model;
  const std::string command =
      "cbc " + model + " ratioGap 0 allowableGap 0 solve solution " + solution + " >/dev/null 2>&1";
  const int status = std::system(command.c_str());
  std::string first_line;
  std::getline(std::ifstream(solution), first_line);
  std::filesystem::remove_all(folder);
  const std::string optimal = "Optimal - objective value ";
  if (first_line.starts_with(optimal)) return std::stod(first_line.substr(optimal.size()));
  if (first_line.starts_with("Infeasible") || first_line.starts_with("Integer infeasible"))
    return std::nullopt;
  throw std::runtime_error("cbc ended with status " + std::to_string(status) + ": '" + first_line + "'");
}

}  // namespace gradweave::testing
