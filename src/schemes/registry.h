// The rows of the registry: one function for each scheme, defined in the scheme's own file; and what completes
// the plan of any.
#pragma once

#include "gradweave/schemes.h"

namespace gradweave {

SchemeInfo sequential_scheme();
SchemeInfo wfbp_scheme();
SchemeInfo ddp_scheme();
SchemeInfo horovod_scheme();
SchemeInfo mg_wfbp_scheme();
SchemeInfo asc_wfbp_scheme();
SchemeInfo p3_scheme();
SchemeInfo bytescheduler_scheme();
SchemeInfo us_byte_scheme();
SchemeInfo dear_scheme();
SchemeInfo deft_scheme();
SchemeInfo covap_scheme();
SchemeInfo local_sgd_scheme();
SchemeInfo partial_sgd_scheme();
SchemeInfo dreamddp_scheme();
SchemeInfo delayed_averaging_scheme();
SchemeInfo optimal_scheme();
SchemeInfo auto_scheme();

// Fills in what every plan of a scheme says of its origin, and compresses its gradients if `options` say so.
// Errors: InvalidInput for a compressor that the plan's collectives can't carry.
void complete_plan(Plan& plan, const Workload& workload, const Cluster& cluster,
                   const SchemeOptions& options);

}  // namespace gradweave
