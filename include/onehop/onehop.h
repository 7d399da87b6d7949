/* SPDX-License-Identifier: Apache-2.0 */
/* onehop: point-to-point transfers by the shortest available path. Includes all C headers. */
#ifndef ONEHOP_ONEHOP_H_
#define ONEHOP_ONEHOP_H_

#include "onehop/batch.h"
#include "onehop/comm.h"
#include "onehop/endpoint.h"
#include "onehop/metrics.h"
#include "onehop/peer.h"
#include "onehop/status.h"
#include "onehop/stream.h"
#include "onehop/types.h"
#include "onehop/version.h"
#include "onehop/wait.h"

#endif /* ONEHOP_ONEHOP_H_ */
