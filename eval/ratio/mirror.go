package ratio

import (
	"context"
	"math/bits"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport"
)

// mirror is one rank's place in a group of size ranks that all do as it does: it hears from each of them what it says itself. It moves
// nothing, and counts what package collective would send from this rank over a mesh, headers included.
type mirror struct {
	size    int
	traffic transport.Traffic
	msgs    [][]byte
}

// Rank is the last, which owns the largest shards of a two-phase exchange. In a ring no rank sends more, but for an element a call.
func (m *mirror) Rank() int                  { return m.size - 1 }
func (m *mirror) Size() int                  { return m.size }
func (m *mirror) Traffic() transport.Traffic { return m.traffic }
func (m *mirror) Abort(error)                {}
func (m *mirror) Close() error               { return nil }

// message is the traffic of that many messages of n bytes.
func message(n, many int) transport.Traffic {
	header := (bits.Len64(uint64(n)<<1|1) + 6) / 7 // a varint of the length and one bit
	return transport.Traffic{SentMessages: int64(many), SentBytes: int64(many) * int64(header+n)}
}

// chunked is the traffic of a long message of n bytes, which travels in chunks.
func chunked(n int) transport.Traffic {
	const chunk = 256 << 10
	t := message(chunk, n/chunk)
	if n%chunk > 0 {
		t = t.Add(message(n%chunk, 1))
	}
	return t
}

// hops is the traffic of the first hops of a ring over n elements of width bytes, from this rank.
func (m *mirror) hops(n, width, hops int) transport.Traffic {
	var t transport.Traffic
	for hop := range hops {
		segment := ((m.Rank()-1-hop)%m.size + m.size) % m.size
		lo, hi := collective.Segment(n, m.size, segment)
		t = t.Add(chunked((hi - lo) * width))
	}
	return t
}

func (m *mirror) count(t transport.Traffic) { m.traffic = m.traffic.Add(t) }

// AllReduce leaves x as it is, which is the mean of equals.
func (m *mirror) AllReduce(_ context.Context, _ kernels.Stream, x kernels.Buf[float32], r collective.Reduction) error {
	m.count(m.hops(x.Len(), r.Wire.Bytes(), 2*(m.size-1)))
	return nil
}

func (m *mirror) ReduceScatter(_ context.Context, _ kernels.Stream, x kernels.Buf[float32], r collective.Reduction) error {
	m.count(m.hops(x.Len(), r.Wire.Bytes(), m.size-1))
	return nil
}

// Reduce counts as a ring and then this rank's segment on its way to root.
func (m *mirror) Reduce(_ context.Context, _ kernels.Stream, x kernels.Buf[float32], r collective.Reduction, root int) error {
	m.count(m.hops(x.Len(), r.Wire.Bytes(), m.size-1))
	if m.Rank() != root {
		lo, hi := collective.Segment(x.Len(), m.size, m.Rank())
		m.count(chunked((hi - lo) * r.Wire.Bytes()))
	}
	return nil
}

func (m *mirror) AllGather(_ context.Context, mine []byte) ([][]byte, error) {
	m.count(message(len(mine), m.size-1))
	return m.all(mine), nil
}

// AllToAll hands out size times what this rank has for itself.
func (m *mirror) AllToAll(_ context.Context, to [][]byte) ([][]byte, error) {
	for r, b := range to {
		if r != m.Rank() {
			m.count(message(len(b), 1))
		}
	}
	return m.all(to[m.Rank()]), nil
}

func (m *mirror) all(b []byte) [][]byte {
	m.msgs = m.msgs[:0]
	for range m.size {
		m.msgs = append(m.msgs, b)
	}
	return m.msgs
}

// Broadcast counts as passing b on, unless this rank is the last on the way.
func (m *mirror) Broadcast(_ context.Context, b []byte, root int) error {
	if (m.Rank()+1)%m.size != root {
		m.count(message(8, 1).Add(chunked(len(b))))
	}
	return nil
}

func (m *mirror) MaxByte(_ context.Context, b byte) (byte, error) {
	m.count(message(1, bits.Len(uint(m.size-1))))
	return b, nil
}

func (m *mirror) Barrier(ctx context.Context) error {
	_, err := m.MaxByte(ctx, 0)
	return err
}
