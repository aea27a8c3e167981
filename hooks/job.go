package hooks

import (
	"fmt"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/kernels"
)

// job is a bucket on its way.
type job struct {
	b       *ddp.Bucket
	spans   []served
	guarded bool // a non-finite gradient would do harm
	dense   bool // and there is one
	err     error

	// One round.
	payloads []compress.Payload
	got      []compress.Received
	linears  []linear
	sparses  []sparse
	msg      []byte
}

// served is a compressor and the gradients that it serves.
type served struct {
	set  compress.Set
	c    compress.Compressor
	grad kernels.Buf[float32]
}

// linear is a payload to be all-reduced: a Linear, or a Sparse written out.
type linear struct {
	x    kernels.Buf[float32]
	wire kernels.DType
	got  *compress.Received
}

// sparse is a payload to be gathered, with room for every rank's. Rooms are kept from step to step.
type sparse struct {
	name string
	p    *compress.Sparse
	got  *compress.Received
	idx  []kernels.Buf[uint32]
	val  []kernels.Buf[float32]
	n    []kernels.Buf[uint32]
}

// stage is where devices whose memory the host cannot see are copied to and from, one set a goroutine.
type stage struct {
	flag        []uint32
	front, back lane
}

type lane struct {
	idx, n []uint32
	val    []float32
}

// encode lists the leaves of a round's payloads and encodes all that are to be gathered into one message.
func (e *Engine) encode(j *job, s kernels.Stream) error {
	j.linears, j.sparses = j.linears[:0], j.sparses[:0]
	for i := range j.spans {
		sp := &j.spans[i]
		e.list(j, s, "", j.payloads[i], &j.got[i], sp.grad, sp.set.Parts)
	}
	if len(j.sparses) == 0 {
		return nil
	}
	st := &e.stage.back
	if s == e.front {
		st = &e.stage.front
	}
	j.msg = compress.AppendHeader(j.msg[:0])
	for i := range j.sparses {
		p := j.sparses[i].p
		n, err := kernels.View(e.ctx, s, p.Len, &st.n)
		if err != nil {
			return err
		}
		k := int(n[0])
		idx, err := kernels.View(e.ctx, s, p.Idx.Slice(0, k), &st.idx)
		if err != nil {
			return err
		}
		val, err := kernels.View(e.ctx, s, p.Val.Slice(0, k), &st.val)
		if err != nil {
			return err
		}
		j.msg = compress.AppendSparse(j.msg, p.N, p.Full, idx, val)
	}
	return nil
}

// list walks a payload and, beside it, the place for what will be received.
func (e *Engine) list(j *job, s kernels.Stream, name string, p compress.Payload, got *compress.Received, out kernels.Buf[float32], parts []compress.Part) {
	switch p := p.(type) {
	case nil:
	case *compress.Many:
		if len(got.Many) != len(p.Of) {
			got.Many = make([]compress.Received, len(p.Of))
		}
		for i, q := range p.Of {
			if p.At == nil {
				e.list(j, s, name, q, &got.Many[i], kernels.Buf[float32]{}, nil)
				continue
			}
			e.list(j, s, parts[i].Name, q, &got.Many[i], out.Slice(p.At[i], p.At[i+1]), parts[i:i+1])
		}
	case *compress.Linear:
		j.linears = append(j.linears, linear{p.X, p.Wire, got})
	case *compress.Sparse:
		if e.goesDense(p) && out.Len() == p.N {
			kernels.Zero(s, out)
			kernels.ScatterAdd(s, out, 1, p.Idx, p.Val, p.Len)
			j.linears = append(j.linears, linear{out, kernels.F32, got})
			return
		}
		// Beyond the length lie the rooms of earlier steps.
		if n := len(j.sparses); n < cap(j.sparses) {
			j.sparses = j.sparses[:n+1]
		} else {
			j.sparses = append(j.sparses, sparse{})
		}
		leaf := &j.sparses[len(j.sparses)-1]
		leaf.name, leaf.p, leaf.got = name, p, got
	default:
		panic(fmt.Sprintf("hooks: payload of type %T", p))
	}
}

// goesDense tells, from what all ranks know, that decoding all ranks' entries would touch more than the whole tensor.
func (e *Engine) goesDense(p *compress.Sparse) bool { return e.cfg.Data.Size()*p.Idx.Len() >= p.N }

// exchange runs one round's collectives: an all-reduce for each wire type, and one gather.
func (e *Engine) exchange(j *job) (msgs [][]byte, err error) {
	bytes := 0
	for wire := kernels.F32; wire <= kernels.BF16; wire++ {
		n, err := e.reduce(j, wire)
		if err != nil {
			return nil, err
		}
		bytes += n * wire.Bytes()
	}
	if len(j.sparses) > 0 {
		bytes += len(j.msg)
		if msgs, err = e.cfg.Data.AllGather(e.ctx, j.msg); err != nil {
			return nil, err
		}
	}
	e.count(func(s *Stats) { s.PayloadBytes += int64(bytes) })
	return msgs, nil
}

// reduce averages everything that travels in one wire type, in place where it lies end to end, and returns how many elements it had.
func (e *Engine) reduce(j *job, wire kernels.DType) (n int, err error) {
	var whole kernels.Buf[float32]
	joined := true
	for i := range j.linears {
		l := &j.linears[i]
		if l.wire != wire || l.x.Len() == 0 {
			continue
		}
		switch next, ok := kernels.Join(whole, l.x); {
		case n == 0:
			whole = l.x
		case joined && ok:
			whole = next
		default:
			joined = false
		}
		n += l.x.Len()
	}
	if !joined {
		if whole, err = e.fuse(j, wire, n); err != nil {
			return 0, err
		}
	}
	if n > 0 {
		if err := e.cfg.Data.AllReduce(e.ctx, e.back, whole, collective.Reduction{Op: collective.Mean, Wire: wire}); err != nil {
			return 0, err
		}
	}
	at := 0
	for i := range j.linears {
		if l := &j.linears[i]; l.wire == wire {
			// The same window where nothing was copied.
			l.got.Mean, l.got.Sparse = l.x, nil
			if l.x.Len() > 0 {
				l.got.Mean = whole.Slice(at, at+l.x.Len())
			}
			at += l.x.Len()
		}
	}
	return n, nil
}

// fuse copies all payloads of a wire type together.
func (e *Engine) fuse(j *job, wire kernels.DType, n int) (kernels.Buf[float32], error) {
	buf := e.fused[wire]
	if buf.Len() < n {
		if err := kernels.Resize(e.cfg.Dev, &buf, n); err != nil {
			return buf, err
		}
		e.fused[wire] = buf
	}
	at := 0
	for i := range j.linears {
		if l := &j.linears[i]; l.wire == wire {
			kernels.Copy(e.back, buf.Slice(at, at+l.x.Len()), l.x)
			at += l.x.Len()
		}
	}
	return buf.Slice(0, n), nil
}

// decode turns every rank's message into what the compressors receive. An error names the rank and the tensor.
func (e *Engine) decode(j *job, msgs [][]byte) error {
	for i := range j.sparses {
		if err := e.room(&j.sparses[i]); err != nil {
			return err
		}
	}
	for r, msg := range msgs {
		rest, err := compress.CheckHeader(msg)
		if err != nil {
			return fmt.Errorf("hooks: payload of rank %d: %w", r, err)
		}
		for i := range j.sparses {
			if rest, err = e.decodeSparse(&j.sparses[i], r, rest); err != nil {
				return fmt.Errorf("hooks: payload of rank %d: %s: %w", r, j.sparses[i].name, err)
			}
		}
		if len(rest) != 0 {
			return fmt.Errorf("hooks: payload of rank %d: %d bytes too long", r, len(rest))
		}
	}
	return nil
}

// room makes place for every rank's entries.
func (e *Engine) room(l *sparse) error {
	size, k := e.cfg.Data.Size(), l.p.Idx.Len()
	if l.idx == nil {
		l.idx, l.val, l.n = make([]kernels.Buf[uint32], size), make([]kernels.Buf[float32], size), make([]kernels.Buf[uint32], size)
	}
	if cap(l.got.Sparse) < size {
		l.got.Sparse = make([]compress.Sparse, size)
	}
	for r := range size {
		if err := kernels.Resize(e.cfg.Dev, &l.idx[r], k); err != nil {
			return err
		}
		if err := kernels.Resize(e.cfg.Dev, &l.val[r], k); err != nil {
			return err
		}
		if err := kernels.Resize(e.cfg.Dev, &l.n[r], 1); err != nil {
			return err
		}
	}
	l.got.Sparse, l.got.Scale = l.got.Sparse[:size], 1/float32(size)
	return nil
}

func (e *Engine) decodeSparse(l *sparse, r int, src []byte) (rest []byte, err error) {
	k, st := l.p.Idx.Len(), &e.stage.back
	idx, val := l.idx[r].Slice(0, k), l.val[r].Slice(0, k)
	got := 0
	err = kernels.Fill(e.back, idx, &st.idx, func(i []uint32) error {
		return kernels.Fill(e.back, val, &st.val, func(v []float32) (err error) {
			got, rest, err = compress.DecodeSparse(src, l.p.N, l.p.Full, i, v)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	st.n = append(st.n[:0], uint32(got))
	kernels.Write(e.back, l.n[r], st.n)
	l.got.Sparse[r] = compress.Sparse{N: l.p.N, Full: l.p.Full, Idx: idx, Val: val, Len: l.n[r]}
	return rest, nil
}
