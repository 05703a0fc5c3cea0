#pragma once

namespace penstock {

// True if the first argument is a command of penstock-lab.
bool IsLabCommand(int argc, char** argv);

// Replaces this process by penstock-lab with the same arguments: the one beside this program, else
// the one in PATH. Returns the exit code of the error (69) where there is none. Call it before any
// thread starts and before signals are blocked.
int ExecuteLabProgram(char** argv);

}  // namespace penstock
