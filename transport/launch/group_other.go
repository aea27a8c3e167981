//go:build !unix

package launch

import "os/exec"

// Without process groups only the processes themselves are ended, and at once.

func ownGroup(*exec.Cmd)      {}
func terminate(cmd *exec.Cmd) { cmd.Process.Kill() }
func kill(cmd *exec.Cmd)      { cmd.Process.Kill() }
