// Package launch starts the ranks of a run as processes on this machine and ends them together.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Options say what to start.
type Options struct {
	// N is the number of processes.
	N int
	// Args is the program and its arguments. A program without a slash that is not in PATH but has the name of this executable is
	// this executable.
	Args []string
	// MasterPort is where rank 0 will listen; 0 picks a free port.
	MasterPort int
	// Stdout and Stderr receive the processes' output line by line, each line behind "[rank 2] ". A line longer than 1 MiB is broken.
	// nil discards.
	Stdout, Stderr io.Writer
	// PlainRank0 passes the standard output of rank 0 through untouched, and sends that of the others to Stderr, so that what rank 0
	// writes can be piped.
	PlainRank0 bool
	// Grace is how long processes may take to end after SIGTERM before they are killed; 0 is 5 s.
	Grace time.Duration
}

func (o *Options) validate() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("launch: %d processes; at least 1 is needed", o.N)
	case len(o.Args) == 0:
		return errors.New("launch: no program to start")
	case o.MasterPort < 0 || o.MasterPort > 65535:
		return fmt.Errorf("launch: master port %d; 1 to 65535 are allowed, or 0 for any", o.MasterPort)
	case o.Grace < 0:
		return fmt.Errorf("launch: grace %v; it must not be negative", o.Grace)
	}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return nil
}

const (
	// orphans is how long output is still read after a process has ended, from children that it left behind.
	orphans = time.Second
	maxLine = 1 << 20
)

// Run starts o.N processes with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set and waits for them. When one fails or ctx
// ends it ends all, with the processes they have started. The error names the first rank that failed and wraps its *exec.ExitError.
func Run(ctx context.Context, o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	path, err := program(o.Args[0])
	if err != nil {
		return err
	}
	port := o.MasterPort
	if port == 0 {
		if port, err = freePort(); err != nil {
			return err
		}
	}
	var turn sync.Mutex // one line at a time, over both outputs
	var running []*exec.Cmd
	ended := make(chan error, o.N)
	var first error
	for r := range o.N {
		cmd := exec.Command(path, o.Args[1:]...)
		cmd.Args[0] = o.Args[0]
		cmd.Env = append(os.Environ(), "RANK="+strconv.Itoa(r), "LOCAL_RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(o.N),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port))
		cmd.WaitDelay = orphans
		ownGroup(cmd)
		prefix := fmt.Sprintf("[rank %d] ", r)
		out := &lines{to: o.Stdout, turn: &turn, prefix: prefix}
		errs := &lines{to: o.Stderr, turn: &turn, prefix: prefix}
		cmd.Stdout, cmd.Stderr = out, errs
		if o.PlainRank0 {
			out.to = o.Stderr
			if r == 0 {
				cmd.Stdout = plain{o.Stdout, &turn}
			}
		}
		if err := cmd.Start(); err != nil {
			first = fmt.Errorf("launch: rank %d: %w", r, err)
			break
		}
		running = append(running, cmd)
		go func() {
			err := cmd.Wait()
			out.flush()
			errs.flush()
			if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
				ended <- fmt.Errorf("launch: rank %d: %w", r, err)
				return
			}
			ended <- nil
		}()
	}

	left := len(running)
	for left > 0 && first == nil {
		select {
		case first = <-ended:
			left--
		case <-ctx.Done():
			first = fmt.Errorf("launch: %w", context.Cause(ctx))
		}
	}
	if first != nil {
		end(running, ended, left, o.Grace)
	}
	return first
}

// end asks all process groups to end, kills them after grace, and waits for the left processes that have not reported yet.
func end(running []*exec.Cmd, ended <-chan error, left int, grace time.Duration) {
	for _, cmd := range running {
		terminate(cmd)
	}
	late := time.After(grace)
	for left > 0 {
		select {
		case <-ended:
			left--
		case <-late:
			late = nil
			for _, cmd := range running {
				kill(cmd)
			}
		}
	}
	for _, cmd := range running { // what they have left behind
		kill(cmd)
	}
}

func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if self, e := os.Executable(); e == nil && name == filepath.Base(self) {
		return self, nil
	}
	return "", fmt.Errorf("launch: %w", err)
}

// freePort is a port that nobody listens on now. Another program may take it before rank 0 does.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("launch: no free port: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
