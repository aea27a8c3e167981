//go:build unix

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		child(os.Args[2])
	}
	os.Exit(m.Run())
}

// child is what the started processes do.
func child(what string) {
	rank := os.Getenv("RANK")
	switch what {
	case "env":
		fmt.Println(rank, os.Getenv("LOCAL_RANK"), os.Getenv("WORLD_SIZE"), os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	case "lines":
		for i := range 200 {
			fmt.Printf("line %d of %s ", i, rank)
			fmt.Print(strings.Repeat("x", 50), "\n")
		}
		fmt.Fprint(os.Stderr, "no end ", rank)
	case "long":
		os.Stdout.WriteString(strings.Repeat("y", maxLine-1) + "\n" + strings.Repeat("z", maxLine) + "\n" + strings.Repeat("w", 2*maxLine+5) + "\nshort\n")
	case "fail": // rank 1 fails, the others would wait for ever
		if rank == "1" {
			os.Exit(3)
		}
		time.Sleep(time.Minute)
	case "die":
		if rank == "1" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		time.Sleep(time.Minute)
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Minute)
	case "polite":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("goodbye")
		os.Exit(0)
	case "parent": // of two that hold its output open
		for _, what := range []string{"deaf", "polite"} {
			cmd := exec.Command(os.Args[0], "child", what)
			cmd.Stdout = os.Stdout
			cmd.Start()
			fmt.Println("pid of", what, cmd.Process.Pid)
		}
		time.Sleep(time.Minute)
	}
	os.Exit(0)
}

// output collects what is written, and calls seen after each write.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	seen func(all string)
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(b)
	if o.seen != nil {
		o.seen(o.b.String())
	}
	return len(b), nil
}

func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := strings.Split(o.b.String(), "\n")
	slices.Sort(l)
	return l
}

func self(what string) []string { return []string{os.Args[0], "child", what} }

func limit(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(stop)
	return ctx
}

func TestEnvironment(t *testing.T) {
	var out output
	if err := Run(limit(t), Options{N: 3, Args: self("env"), MasterPort: 1234, Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	want := []string{"", "[rank 0] 0 0 3 127.0.0.1 1234", "[rank 1] 1 1 3 127.0.0.1 1234", "[rank 2] 2 2 3 127.0.0.1 1234"}
	if got := out.lines(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	out = output{}
	if err := Run(limit(t), Options{N: 1, Args: self("env"), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Sscanf(out.lines()[1], "[rank 0] 0 0 1 127.0.0.1 %d", &port); err != nil || port == 0 {
		t.Errorf("got %q", out.lines())
	}
}

func TestLinesStayWhole(t *testing.T) {
	var out output // both outputs, by design
	if err := Run(limit(t), Options{N: 4, Args: self("lines"), Stdout: &out, Stderr: &out}); err != nil {
		t.Fatal(err)
	}
	var want []string
	for r := range 4 {
		for i := range 200 {
			want = append(want, fmt.Sprintf("[rank %d] line %d of %d %s", r, i, r, strings.Repeat("x", 50)))
		}
		want = append(want, fmt.Sprintf("[rank %d] no end %d", r, r))
	}
	want = append(want, "")
	slices.Sort(want)
	if got := out.lines(); !slices.Equal(got, want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
}

func TestLongLines(t *testing.T) {
	var out output
	if err := Run(limit(t), Options{N: 1, Args: self("long"), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for l := range strings.Lines(out.b.String()) {
		l = strings.TrimSuffix(strings.TrimPrefix(l, "[rank 0] "), "\n")
		if l != "" {
			got = append(got, fmt.Sprint(l[:1], len(l)))
		}
	}
	want := []string{fmt.Sprint("y", maxLine-1), fmt.Sprint("z", maxLine), fmt.Sprint("w", maxLine), fmt.Sprint("w", maxLine), "w5", "s5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPlainRank0(t *testing.T) {
	var out, errs output
	if err := Run(limit(t), Options{N: 2, Args: self("env"), MasterPort: 1, Stdout: &out, Stderr: &errs, PlainRank0: true}); err != nil {
		t.Fatal(err)
	}
	if got := out.b.String(); got != "0 0 2 127.0.0.1 1\n" {
		t.Errorf("stdout is %q", got)
	}
	if got := errs.b.String(); got != "[rank 1] 1 1 2 127.0.0.1 1\n" {
		t.Errorf("stderr is %q", got)
	}
}

func TestOneFailsAllEnd(t *testing.T) {
	for what, want := range map[string]string{"fail": "launch: rank 1: exit status 3", "die": "launch: rank 1: signal: killed"} {
		err := Run(limit(t), Options{N: 3, Args: self(what)})
		var exit *exec.ExitError
		if err == nil || err.Error() != want || !errors.As(err, &exit) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// cancelWhen runs what on two ranks and cancels once both have printed ready.
func cancelWhen(t *testing.T, what string, grace time.Duration) *output {
	ctx, stop := context.WithCancel(limit(t))
	out := &output{seen: func(all string) {
		if strings.Count(all, "ready") == 2 {
			stop()
		}
	}}
	if err := Run(ctx, Options{N: 2, Args: self(what), Stdout: out, Grace: grace}); !errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", what, err)
	}
	return out
}

func TestCancel(t *testing.T) {
	if out := cancelWhen(t, "polite", 15*time.Second); strings.Count(out.b.String(), "goodbye") != 2 {
		t.Errorf("no time to end: %q", out.b.String())
	}
	cancelWhen(t, "deaf", 50*time.Millisecond)
}

// The processes that a rank has started are asked to end with it, and are killed if they do not.
func TestGrandchildrenEnd(t *testing.T) {
	ctx, stop := context.WithCancel(limit(t))
	out := &output{seen: func(all string) {
		if strings.Count(all, "ready") == 2 && strings.Count(all, "pid of") == 2 {
			stop()
		}
	}}
	if err := Run(ctx, Options{N: 1, Args: self("parent"), Stdout: out}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	all := out.b.String()
	if !strings.Contains(all, "goodbye") {
		t.Errorf("the polite one was not asked: %q", all)
	}
	var pid int
	_, deaf, _ := strings.Cut(all, "pid of deaf ")
	if _, err := fmt.Sscan(deaf, &pid); err != nil {
		t.Fatal(err)
	}
	for range 500 { // a zombie counts as ended: init reaps it in its own time
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if zombie := err == nil && strings.Contains(string(stat), ") Z "); zombie || syscall.Kill(pid, 0) != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d lives on", pid)
}

func TestProgramNames(t *testing.T) {
	base := filepath.Base(os.Args[0])
	if got, err := program(base); err != nil || filepath.Base(got) != base {
		t.Errorf("%s: %q, %v", base, got, err)
	}
	err := Run(t.Context(), Options{N: 1, Args: []string{"no-such-program"}, Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"0 processes": {Args: []string{"x"}},
		"no program":  {N: 1},
		"port 70000":  {N: 1, Args: []string{"x"}, MasterPort: 70000},
		"grace -1ns":  {N: 1, Args: []string{"x"}, Grace: -1},
	} {
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
