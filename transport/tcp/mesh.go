package tcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/internal/link"
)

const (
	// linger is how long a rank that stops keeps reading, so that the kernel does not reset what is still on its way out.
	linger = 2 * time.Second
	// patience is how often a blocked Send looks whether it still should wait.
	patience = 100 * time.Millisecond
	// piece is how much of a long message is read before the peer counts as alive again, in bytes.
	piece = 1 << 20
	// maxCause bounds the text of an abort, in bytes.
	maxCause = 4096
)

type mesh struct {
	*link.End
	peers []*peer // nil at this rank
}

type peer struct {
	rank int
	conn *net.TCPConn
	done chan struct{} // closed when nothing more can be read

	mu   sync.Mutex // held while a frame is written
	torn bool       // a frame was left incomplete: nothing can follow
	hdr  [binary.MaxVarintLen64]byte
	vec  [2][]byte
	out  net.Buffers
}

// newMesh starts a mesh over conns, which hold nil at rank.
func newMesh(rank int, conns []*net.TCPConn, timeout time.Duration) *mesh {
	m := &mesh{End: link.NewEnd("tcp", rank, len(conns), timeout, new(link.Pool)), peers: make([]*peer, len(conns))}
	for r, c := range conns {
		if c != nil {
			m.peers[r] = &peer{rank: r, conn: c, done: make(chan struct{})}
		}
	}
	for _, p := range m.peers {
		if p != nil {
			go m.read(p)
		}
	}
	return m
}

func (m *mesh) Send(ctx context.Context, to int, b []byte) error {
	if err := m.Sending(ctx, to, len(b)); err != nil {
		return err
	}
	p := m.peers[to]
	p.mu.Lock()
	err := m.write(ctx, p, b)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	m.Sent(len(b))
	return nil
}

func (m *mesh) Pass(ctx context.Context, to int, b []byte) error {
	err := m.Send(ctx, to, b)
	m.Release(b)
	return err
}

// write puts a message on the wire straight from b. The peer's reader always drains, so a write blocks only while the wire is busy.
func (m *mesh) write(ctx context.Context, p *peer, b []byte) error {
	if p.torn {
		return m.Fail(m.Blame(p.rank, "rank %d: connection lost", p.rank))
	}
	p.frame(b, false)
	for waited := time.Duration(0); ; {
		p.conn.SetWriteDeadline(time.Now().Add(patience))
		n, err := p.out.WriteTo(p.conn)
		if err == nil {
			return nil
		}
		if waited += patience; n > 0 {
			waited = 0
		}
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			err = m.lost(p)
		case m.Err() != nil:
			err = m.Err()
		case ctx.Err() != nil: // half a frame is out: this ends the mesh, and not only the call
			err = m.Fail(fmt.Errorf("tcp: send to rank %d: %w", p.rank, context.Cause(ctx)))
		case waited >= m.Timeout():
			err = m.Fail(m.Blame(p.rank, "send to rank %d: nothing taken within %v", p.rank, m.Timeout()))
		default:
			continue // with what is left of p.out
		}
		p.torn = true
		return err
	}
}

// frame sets p.out to a header and b.
func (p *peer) frame(b []byte, control bool) {
	p.vec[0] = p.hdr[:link.PutHeader(p.hdr[:], len(b), control)]
	p.vec[1] = b
	p.out = p.vec[:]
	if len(b) == 0 {
		p.out = p.vec[:1]
	}
}

// lost is the failure after a write to p has failed. The peer may have said why before it closed: the reader is given time to find it.
func (m *mesh) lost(p *peer) error {
	select {
	case <-p.done:
	case <-time.After(linger):
	}
	return m.Fail(m.Blame(p.rank, "rank %d: connection lost", p.rank))
}

// read moves what p sends into the inbox until the connection ends.
func (m *mesh) read(p *peer) {
	defer p.conn.Close()
	defer close(p.done)
	in := bufio.NewReaderSize(p.conn, 4096)
	for left := false; ; {
		b, control, err := readFrame(in, m.Get, func() { m.Alive(p.rank) })
		switch {
		case err != nil:
			if !left {
				m.Fail(m.Blame(p.rank, "rank %d: %s", p.rank, ended(err)))
			}
			return
		case !control:
			m.Deliver(p.rank, b)
		case len(b) == 0:
			left = true
			m.Left(p.rank)
		default:
			m.Fail(parseCause(p.rank, m.Size(), b))
		}
	}
}

func ended(err error) string {
	if errors.Is(err, errFrame) {
		return err.Error()
	}
	return "connection lost"
}

var errFrame = errors.New("malformed frame")

// readHeader reads and checks the header of a frame.
func readHeader(in io.ByteReader) (n int, control bool, err error) {
	const maxLen = 5 // bytes hold twice MaxMessage
	var h uint64
	for i := range maxLen {
		c, err := in.ReadByte()
		if err != nil {
			return 0, false, err
		}
		h |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			control = h&1 == 1
			if h >>= 1; h > link.MaxMessage || control && h > maxCause {
				return 0, false, errFrame
			}
			return int(h), control, nil
		}
	}
	return 0, false, errFrame
}

// readFrame reads one frame into a buffer from get, calling alive after each piece of a long one.
func readFrame(in *bufio.Reader, get func(n int) []byte, alive func()) (b []byte, control bool, err error) {
	n, control, err := readHeader(in)
	if err != nil {
		return nil, false, err
	}
	b = get(n)
	for rest := b; len(rest) > 0; {
		k, err := io.ReadFull(in, rest[:min(piece, len(rest))])
		if err != nil {
			return nil, false, err
		}
		if rest = rest[k:]; len(rest) > 0 {
			alive()
		}
	}
	return b, control, nil
}

// An abort frame holds the rank at fault as a varint and the reason.

func appendCause(b []byte, e *transport.PeerError) []byte {
	b = binary.AppendUvarint(b, uint64(e.Rank))
	return append(b, e.Reason[:min(len(e.Reason), maxCause-binary.MaxVarintLen64)]...)
}

func parseCause(from, size int, b []byte) *transport.PeerError {
	r, n := binary.Uvarint(b)
	if n <= 0 || r >= uint64(size) {
		return &transport.PeerError{Rank: from, Via: from, Reason: "for an unreadable reason"}
	}
	return &transport.PeerError{Rank: int(r), Via: from, Reason: string(b[n:])}
}

func (m *mesh) Abort(cause error) { m.stop(cause) }

func (m *mesh) Close() error {
	m.stop(nil)
	return nil
}

// stop says goodbye or why to all peers at once, so that one that hangs does not keep the news from the others. The readers go on for
// a while, and close the connections when they end.
func (m *mesh) stop(cause error) {
	why, first := m.Stop(cause)
	if !first {
		return
	}
	var last []byte
	if why != nil {
		last = appendCause(nil, why)
	}
	var wg sync.WaitGroup
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		wg.Go(func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.conn.SetWriteDeadline(time.Now().Add(linger))
			if !p.torn {
				p.frame(last, true)
				p.out.WriteTo(p.conn) // a peer that cannot be told finds the connection closed
				p.torn = true
			}
			p.conn.SetReadDeadline(time.Now().Add(linger))
			p.conn.CloseWrite()
		})
	}
	wg.Wait()
}
