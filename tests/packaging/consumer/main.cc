#include <cstdio>
#include <variant>

#include "gradweave/json.h"
#include "gradweave/schemes.h"
#include "gradweave/simulate.h"

// Plans for the workload and cluster in its arguments, and prints the iteration time in ns.
int main(int, char** argv) {
  using namespace gradweave;
  const Workload workload = read_workload(argv[1]);
  const Cluster cluster = read_cluster(argv[2]);
  const PlanResult plan = make_plan("dear", workload, cluster);
  std::printf("%.0f\n", simulate(std::get<Plan>(plan), {workload}, cluster).iteration_ns());
}
