package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/internal/meshtest"
)

func TestMain(m *testing.M) {
	if os.Getenv("TCP_TEST_CHILD") != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

func listen(tb testing.TB) *net.TCPListener {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

// dial calls Dial for each config at once.
func dial(ctx context.Context, cs ...Config) ([][]transport.Mesh, []error) {
	ms, errs := make([][]transport.Mesh, len(cs)), make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() { ms[i], errs[i] = Dial(ctx, c) })
	}
	wg.Wait()
	return ms, errs
}

// configs are those of n ranks that will meet at ln.
func configs(ln *net.TCPListener, n int, timeout time.Duration) []Config {
	cs := make([]Config, n)
	for r := range cs {
		cs[r] = Config{Rank: r, Size: n, Master: ln.Addr().String(), Timeout: timeout}
	}
	cs[0].Listener = ln
	return cs
}

func local(tb testing.TB, n int, timeout time.Duration) []transport.Mesh {
	tb.Helper()
	cs := configs(listen(tb), n, timeout)
	ms, errs := dial(tb.Context(), cs...)
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	out := make([]transport.Mesh, n)
	for r := range out {
		out[r] = ms[r][0]
	}
	return out
}

func TestMesh(t *testing.T) {
	meshtest.Run(t, func(t *testing.T, n int, timeout time.Duration) []transport.Mesh { return local(t, n, timeout) })
}

func TestMeshesAreIndependent(t *testing.T) {
	cs := configs(listen(t), 3, 10*time.Second)
	for r := range cs {
		cs[r].Meshes = 2
	}
	ms, errs := dial(t.Context(), cs...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ms[0][0].Abort(errors.New("first mesh"))
	if _, err := ms[1][0].Recv(t.Context(), 0); err == nil {
		t.Error("the first mesh lives")
	}
	if err := ms[0][1].Send(t.Context(), 1, []byte("second")); err != nil {
		t.Fatal(err)
	}
	if b, err := ms[1][1].Recv(t.Context(), 0); err != nil || string(b) != "second" {
		t.Errorf("the second mesh: %q, %v", b, err)
	}
	for _, m := range ms {
		m[0].Close()
		m[1].Close()
	}
}

func TestOneRankNeedsNobody(t *testing.T) {
	ms, err := Dial(t.Context(), Config{Size: 1, Meshes: 3})
	if err != nil || len(ms) != 3 {
		t.Fatalf("%d meshes, %v", len(ms), err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("got %v, want an error with %q", err, p)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Size: 0}, "world size 0; 1 to"},
		{Config{Size: 2, Rank: 2}, "rank 2; 0 to 1"},
		{Config{Size: 2, Rank: -1}, "rank -1; 0 to 1"},
		{Config{Size: 2, Meshes: 65}, "65 meshes; 1 to 64"},
		{Config{Size: 2, Master: "host"}, `master "host"; host:port`},
		{Config{Size: 2, Master: "host:0"}, `port "0"`},
		{Config{Size: 2, Master: "host:x"}, `port "x"`},
		{Config{Size: 2, Master: "host:1", Timeout: -1}, "timeout"},
	} {
		_, err := Dial(t.Context(), c.c)
		wantError(t, err, c.want)
	}
}

func TestFromEnv(t *testing.T) {
	good := map[string]string{"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"}
	for _, c := range []struct{ name, value, want string }{
		{"RANK", "4", `RANK="4"; 0 to 3`},
		{"RANK", "x", `RANK="x"; 0 to 3`},
		{"WORLD_SIZE", "0", `WORLD_SIZE="0"; 1 to`},
		{"MASTER_PORT", "70000", `MASTER_PORT="70000"; 1 to 65535`},
		{"MASTER_ADDR", "", "MASTER_ADDR is not set"},
	} {
		for k, v := range good {
			t.Setenv(k, v)
		}
		got, err := FromEnv()
		if want := (Config{Rank: 2, Size: 4, Master: "[::1]:29500"}); err != nil || got != want {
			t.Fatalf("got %+v, %v", got, err)
		}
		t.Setenv(c.name, c.value)
		_, err = FromEnv()
		wantError(t, err, c.want)
	}
	os.Unsetenv("RANK")
	_, err := FromEnv()
	wantError(t, err, "RANK is not set; 0 to 3")
}

func TestPortInUse(t *testing.T) {
	at := listen(t).Addr().String()
	_, err := Dial(t.Context(), Config{Size: 2, Master: at})
	wantError(t, err, at, "another program", "MASTER_PORT")
}

func TestMissingRanksAreNamed(t *testing.T) {
	cs := configs(listen(t), 5, 300*time.Millisecond)
	_, errs := dial(t.Context(), cs[0], cs[2], cs[4])
	for _, err := range errs {
		wantError(t, err, "ranks 1, 3 did not come within 300ms")
	}
}

func TestNoMaster(t *testing.T) {
	ln := listen(t)
	at := ln.Addr().String()
	ln.Close()
	_, err := Dial(t.Context(), Config{Rank: 1, Size: 2, Master: at, Timeout: 200 * time.Millisecond})
	wantError(t, err, "rank 1 did not reach rank 0 at "+at+" within 200ms", "refused")
}

func TestDialCancel(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	cs := configs(listen(t), 3, 20*time.Second)
	_, errs := dial(ctx, cs[0], cs[1])
	for _, err := range errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}

func TestStraysAreRefused(t *testing.T) {
	ln := listen(t)
	cs := configs(ln, 3, 10*time.Second)
	at := ln.Addr().String()
	var wg sync.WaitGroup
	errs := make([]error, 2)
	var ms []transport.Mesh
	for r := range 2 {
		wg.Go(func() {
			got, err := Dial(t.Context(), cs[r])
			errs[r] = err
			if r == 0 && err == nil {
				ms = got
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // rank 1 registers

	// A browser, a slow one that never says anything, one that hangs up, and one with a rank's first bytes.
	for _, s := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "", magic, magic + strings.Repeat("\xff", 60)} {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, s)
	}
	refused := func(h hello, want string) {
		t.Helper()
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		_, err = ask(ctx, conn, h)
		wantError(t, err, want)
	}
	refused(hello{kind: register, rank: 1, size: 3, mesh: 1}, "rank 1 is taken")
	refused(hello{kind: register, rank: 0, size: 3, mesh: 1}, "rank 0 is taken")
	refused(hello{kind: register, rank: 2, size: 4, mesh: 1}, "rank 2 has world size 4, rank 0 has 3")
	refused(hello{kind: register, rank: 2, size: 3, mesh: 2}, "rank 2 wants 2 meshes, rank 0 wants 1")
	refused(hello{kind: 9, rank: 2, size: 3}, "kind 9")
	refused(hello{kind: register, rank: 3, size: 3}, "rank 3; 0 to 2")
	refused(hello{kind: register, size: 1 << 20}, "world size")
	stray := make(chan error)
	go func() { // joins before the token is out, with a token of its own
		conn, err := net.Dial("tcp", at)
		if err == nil {
			defer conn.Close()
			_, err = ask(t.Context(), conn, hello{kind: join, rank: 2, size: 3, token: token{1}})
		}
		stray <- err
	}()
	got, err := Dial(t.Context(), cs[2])
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, <-stray, "token of another run")
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := got[0].Send(t.Context(), 0, []byte("here")); err != nil {
		t.Fatal(err)
	}
	if b, err := ms[0].Recv(t.Context(), 2); err != nil || string(b) != "here" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestMasterIsSomethingElse(t *testing.T) {
	for name, answer := range map[string]string{"web server": "HTTP/1.1 400 Bad Request\r\n\r\n", "hangs up": "",
		"huge table": "\x00\xff\xff\xff\xff", "short table": "\x00\x00\x00\x00\x01x"} {
		ln := listen(t)
		go func() {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			io.ReadFull(conn, make([]byte, helloLen))
			io.WriteString(conn, answer)
			conn.Close()
		}()
		_, err := Dial(t.Context(), Config{Rank: 1, Size: 2, Master: ln.Addr().String(), Timeout: 5 * time.Second})
		if err == nil || !strings.Contains(err.Error(), "rank 0 at "+ln.Addr().String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMalformedFrameNamesTheRank(t *testing.T) {
	for name, s := range map[string]string{"long": "\xff\xff\xff\xff\xff\xff", "too large": "\xff\xff\xff\xff\x7f", "large cause": "\x83\x80\x7f"} {
		ms := local(t, 2, 10*time.Second)
		ms[1].(*mesh).peers[0].conn.Write([]byte(s))
		_, err := ms[0].Recv(t.Context(), 1)
		wantError(t, err, "tcp: rank 1: malformed frame")
		if t.Failed() {
			t.Fatal(name)
		}
		ms[0].Close()
		ms[1].Close()
	}
}

// child is one rank of TestKill: it talks to all others until something fails, and reports what.
func child() {
	c, err := FromEnv()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	ms, err := Dial(ctx, c)
	if err != nil {
		fmt.Println(err)
		return
	}
	m := ms[0]
	defer m.Close()
	b := make([]byte, 1<<20)
	for i := 0; ; i++ {
		right, left := (c.Rank+1)%c.Size, (c.Rank+c.Size-1)%c.Size
		err := m.Send(ctx, right, b)
		if err == nil {
			var got []byte
			got, err = m.Recv(ctx, left)
			m.Release(got)
		}
		if err != nil {
			m.Abort(err)
			fmt.Println(err)
			return
		}
		if i == 10 {
			fmt.Println("running")
		}
	}
}

// A killed process ends the others, with its name, long before the timeout.
func TestKill(t *testing.T) {
	ln := listen(t)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	const n, victim = 4, 2
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	cmds := make([]*exec.Cmd, n)
	outs := make([]io.Reader, n)
	for r := range cmds {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "TCP_TEST_CHILD=1", fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", n),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
		cmd.Stderr = os.Stderr
		if outs[r], err = cmd.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds[r] = cmd
	}
	for r := range outs {
		b := make([]byte, len("running\n"))
		if _, err := io.ReadFull(outs[r], b); err != nil || string(b) != "running\n" {
			t.Fatalf("rank %d says %q, %v", r, b, err)
		}
	}
	cmds[victim].Process.Kill()
	for r := range outs {
		b, err := io.ReadAll(outs[r])
		if r != victim && (err != nil || !strings.Contains(string(b), "rank 2: connection lost")) {
			t.Errorf("rank %d says %q, %v", r, b, err)
		}
		cmds[r].Wait()
	}
	if ctx.Err() != nil {
		t.Error("the others did not end")
	}
}
