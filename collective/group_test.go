package collective_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/collective/collectivetest"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/inproc"
	"github.com/gradpress/gradpress/transport/tcp"
)

func over(ms []transport.Mesh) []collective.Group {
	gs := make([]collective.Group, len(ms))
	for i, m := range ms {
		gs[i] = collective.New(m)
	}
	return gs
}

// loopback returns the ends of a mesh of n ranks in this process that talk TCP.
func loopback(tb testing.TB, n int) []transport.Mesh {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ms := make([]transport.Mesh, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		c := tcp.Config{Rank: r, Size: n, Master: ln.Addr().String(), Timeout: 15 * time.Second}
		if r == 0 {
			c.Listener = ln.(*net.TCPListener)
		}
		wg.Go(func() {
			got, err := tcp.Dial(tb.Context(), c)
			if err != nil {
				errs[r] = err
				return
			}
			ms[r] = got[0]
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return ms
}

func TestInproc(t *testing.T) {
	collectivetest.Run(t, func(n int) []collective.Group { return over(inproc.New(n)) })
}

func TestTCP(t *testing.T) {
	collectivetest.Run(t, func(n int) []collective.Group { return over(loopback(t, n)) })
}

// together runs f on every rank and fails the test on any error.
func together(tb testing.TB, gs []collective.Group, f func(ctx context.Context, g collective.Group) error) {
	tb.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	errs := make([]error, len(gs))
	var wg sync.WaitGroup
	for i, g := range gs {
		wg.Go(func() { errs[i] = f(ctx, g) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

func vector(tb testing.TB, n int) (kernels.Stream, kernels.Buf[float32]) {
	s, err := kernels.CPU().NewStream()
	if err != nil {
		tb.Fatal(err)
	}
	x, err := kernels.NewBuf[float32](s.Device(), n)
	if err != nil {
		tb.Fatal(err)
	}
	return s, x
}

// Each rank sends 2(N-1) segments of S/N bytes, each with one header, and nothing else; both transports count alike.
func TestAllReduceTraffic(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 7} {
		for _, wire := range []kernels.DType{kernels.F32, kernels.F16} {
			const segment = 1000 // elements, less than a chunk
			messages := int64(2 * (n - 1))
			body := int64(segment * wire.Bytes())
			header := int64(len(binary.AppendUvarint(nil, uint64(2*body))))
			want := transport.Traffic{SentMessages: messages, SentBytes: messages * (body + header),
				RecvMessages: messages, RecvBytes: messages * (body + header)}
			for name, ms := range map[string][]transport.Mesh{"inproc": inproc.New(n), "tcp": loopback(t, n)} {
				gs := over(ms)
				together(t, gs, func(ctx context.Context, g collective.Group) error {
					s, x := vector(t, n*segment)
					before := g.Traffic()
					if err := g.AllReduce(ctx, s, x, collective.Reduction{Wire: wire}); err != nil {
						return err
					}
					if got := g.Traffic().Sub(before); got != want {
						return fmt.Errorf("%s, rank %d of %d, %v: traffic %+v, want %+v", name, g.Rank(), n, wire, got, want)
					}
					return nil
				})
				for _, g := range gs {
					g.Close()
				}
			}
		}
	}
}

// What a peer sends is never trusted to have the right length.
func TestWrongLengthNamesTheRank(t *testing.T) {
	for _, length := range []int{0, 1, 399, 401, 1 << 20} {
		ms := inproc.New(2)
		g := collective.New(ms[0])
		if err := ms[1].Send(t.Context(), 0, make([]byte, length)); err != nil {
			t.Fatal(err)
		}
		s, x := vector(t, 200)
		err := g.AllReduce(t.Context(), s, x, collective.Reduction{})
		var p *transport.PeerError
		if !errors.As(err, &p) || p.Rank != 1 {
			t.Errorf("%d bytes for a segment of 400: %v", length, err)
		}
		if _, err := ms[1].Recv(t.Context(), 0); err == nil {
			t.Log("the first segment arrived before the failure")
		}
		if _, err := ms[1].Recv(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "rank 0 gave up") {
			t.Errorf("the peer was told %v", err)
		}
		g.Close()
	}
}

func TestAllGatherReturnsMine(t *testing.T) {
	gs := over(inproc.New(2))
	together(t, gs, func(ctx context.Context, g collective.Group) error {
		mine := []byte{byte(g.Rank())}
		got, err := g.AllGather(ctx, mine)
		if err == nil && &got[g.Rank()][0] != &mine[0] {
			err = errors.New("a copy was made of mine")
		}
		return err
	})
}

const benchBytes = 25 << 20

func BenchmarkAllReduce(b *testing.B) {
	for _, wire := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F16} {
		for _, n := range []int{2, 4} {
			b.Run(fmt.Sprintf("inproc/%v/ranks=%d", wire, n), func(b *testing.B) { benchAllReduce(b, inproc.New(n), wire) })
			b.Run(fmt.Sprintf("tcp/%v/ranks=%d", wire, n), func(b *testing.B) { benchAllReduce(b, loopback(b, n), wire) })
		}
	}
}

func benchAllReduce(b *testing.B, ms []transport.Mesh, wire kernels.DType) {
	gs := over(ms)
	defer func() {
		for _, g := range gs {
			g.Close()
		}
	}()
	streams := make([]kernels.Stream, len(gs))
	xs := make([]kernels.Buf[float32], len(gs))
	for r := range gs {
		streams[r], xs[r] = vector(b, benchBytes/4)
	}
	run := func(n int) {
		var wg sync.WaitGroup
		for r, g := range gs {
			wg.Go(func() {
				for range n {
					if err := g.AllReduce(context.Background(), streams[r], xs[r], collective.Reduction{Op: collective.Mean, Wire: wire}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(1) // fill the pools
	b.SetBytes(benchBytes)
	b.ReportAllocs()
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
	took := b.Elapsed() / time.Duration(b.N)
	b.ReportMetric(float64(took)/float64(plainCopy(b.N)), "x-copy")
}

// plainCopy is the mean time of n copies of benchBytes by one goroutine: as many as were reduced, so that whatever else the machine does
// slows both.
func plainCopy(n int) time.Duration {
	src, dst := make([]byte, benchBytes), make([]byte, benchBytes)
	for i := range src { // untouched memory is one page of zeros, which stays in the cache
		src[i] = byte(i)
	}
	copy(dst, src)
	start := time.Now()
	for range n {
		copy(dst, src)
	}
	return time.Since(start) / time.Duration(n)
}
