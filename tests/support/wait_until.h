#pragma once

// Tests wait as the laboratory does: EXPECT_TRUE(WaitUntil(condition, limit)).
#include "lab/fake/wait_until.h"
