// Package powersgd holds low-rank compression: each gradient matrix M is sent as P Q^T, found by one power iteration a step that starts
// from the last step's Q (Vogels et al., "PowerSGD", NeurIPS 2019).
package powersgd

import (
	"context"
	"errors"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// Config sets PowerSGD.
type Config struct {
	Rank      int      `key:"rank" doc:"columns of P and Q, at least 1"`
	Rate      float64  `key:"rate" doc:"a tensor goes dense unless it is more than rate times as large as its P and Q"`
	WarmStart bool     `key:"warm_start" doc:"start from the last step's Q, and not each time from the first"`
	Residual  Residual `key:"residual" doc:"what a rank keeps: local, M - P (M^T P)^T of its own M; or mean, M less the mean result"`
	Begin     int      `key:"begin" doc:"dense steps before the first low-rank one; PyTorch's hook has 1000, eval sets a tenth of the run"`
}

// Residual is what a rank keeps of its matrix M = gradient + residual. On average over ranks both are what was not sent.
type Residual uint8

const (
	// Local is M - P (M^T P)^T: what is left of a projection of the rank's own M, and so never longer than M.
	Local Residual = iota
	// Mean is M - P Q^T, as in the paper's code and PyTorch: where ranks differ it holds their difference too.
	Mean
)

func (r Residual) String() string { return [...]string{"local", "mean"}[r] }

// UnmarshalText reads local or mean.
func (r *Residual) UnmarshalText(text []byte) error {
	for _, x := range [...]Residual{Local, Mean} {
		if x.String() == string(text) {
			*r = x
			return nil
		}
	}
	return errors.New("want local or mean")
}

// Register adds powersgd with its defaults. Rank 2 is the middle of the ranks 1, 2 and 4 that the paper trains with (section 5).
func Register(r *compress.Registry) {
	compress.Register(r, "powersgd", "low rank: each matrix as P Q^T, by one warm-started power iteration (Vogels et al. 2019)",
		Config{Rank: 2, Rate: 2, WarmStart: true}, compress.Feedback, New)
}

// Validate checks the ranges.
func (c Config) Validate() error {
	switch {
	case c.Rank < 1:
		return errors.New("rank must be at least 1")
	case !(c.Rate > 0):
		return errors.New("rate must be over 0")
	case c.Begin < 0:
		return errors.New("begin must be 0 (at once) or a number of steps")
	}
	return nil
}

// WarmupSteps is how long everything goes dense.
func (c Config) WarmupSteps() int { return c.Begin }

// purpose sets the numbers of the first Q apart from other uses of the seed.
const purpose = 0x706f_7765_7273_6764 // "powersgd"

// New makes PowerSGD for a whole set: one round exchanges all P and the tensors that go dense, another all Q. It leaves the residual of
// matrices in v, and none of dense tensors: wrap it in feedback.
//
// State of a matrix: "q0", the first Q, and with warm start "q", the one that the next step starts from; columns end to end.
func New(c Config, t compress.Set) (compress.Compressor, error) {
	mk := func(t compress.Set) (compress.Compressor, error) { return lowRank(c, t) }
	if c.Begin > 0 {
		mk = compress.DenseFirst(mk, compress.Momentum{}, c.Begin)
	}
	return mk(t)
}

func lowRank(c Config, t compress.Set) (compress.Compressor, error) {
	z := &powerSGD{cfg: c}
	var np, nq, at int
	for _, p := range t.Parts {
		w := window{at, at + p.Len()}
		if m, ok := c.factor(p); ok {
			m.window = w
			z.matrices = append(z.matrices, m)
			np, nq = np+m.rank*m.rows, nq+m.rank*m.cols
		} else if last := len(z.dense) - 1; last >= 0 && z.dense[last].hi == at {
			z.dense[last].hi = w.hi
		} else {
			z.dense = append(z.dense, w)
		}
		at = w.hi
	}
	var errs [3]error
	z.p, errs[0] = kernels.NewBuf[float32](t.Dev, np)
	z.q, errs[1] = kernels.NewBuf[float32](t.Dev, nq)
	z.first, errs[2] = kernels.NewBuf[float32](t.Dev, nq)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	np, nq = 0, 0
	for i := range z.matrices {
		m := &z.matrices[i]
		m.p = z.p.Slice(np, np+m.rank*m.rows)
		m.q, m.first = z.q.Slice(nq, nq+m.rank*m.cols), z.first.Slice(nq, nq+m.rank*m.cols)
		np, nq = np+m.p.Len(), nq+m.q.Len()
	}
	z.linears = make([]compress.Linear, 1+len(z.dense))
	z.ps.Of = make([]compress.Payload, len(z.linears))
	for i := range z.linears {
		z.ps.Of[i] = &z.linears[i]
	}
	return z, z.draw(t)
}

type powerSGD struct {
	cfg         Config
	matrices    []matrix
	dense       []window             // tensors that are not worth it, joined where they lie end to end
	p, q, first kernels.Buf[float32] // of all matrices, end to end
	v           kernels.Buf[float32]
	linears     []compress.Linear // all P or all Q, then the dense tensors
	ps          compress.Many     // of linears
	sentQ       bool
}

// window is elements lo to hi-1 of the set.
type window struct{ lo, hi int }

func (w window) of(x kernels.Buf[float32]) kernels.Buf[float32] { return x.Slice(w.lo, w.hi) }

// matrix is a part that is sent as P Q^T, a tensor of shape (d0, d1, ...) as d0 rows.
type matrix struct {
	window
	part             compress.Part
	rows, cols, rank int
	p, q, first      kernels.Buf[float32]
}

// factor says how a part is sent, and whether that is worth it.
func (c Config) factor(p compress.Part) (m matrix, ok bool) {
	n := p.Len()
	if n == 0 || len(p.Shape) == 0 {
		return m, false
	}
	m = matrix{part: p, rows: p.Shape[0], cols: n / p.Shape[0]}
	m.rank = min(m.rows, m.cols, c.Rank)
	return m, float64(n) > c.Rate*float64(m.rank*(m.rows+m.cols))
}

// draw fills every first Q with normal numbers that all ranks agree on.
func (z *powerSGD) draw(t compress.Set) error {
	s, err := t.Dev.NewStream()
	if err != nil {
		return err
	}
	var x []float32
	for i := range z.matrices {
		m := &z.matrices[i]
		x = append(x[:0], make([]float32, m.first.Len())...)
		kernels.Normal(x, [4]uint32{0, 0, 0, m.part.ID}, kernels.Key(t.Seed^purpose))
		kernels.Write(s, m.first, x)
	}
	kernels.Copy(s, z.q, z.first)
	return s.Sync(context.Background())
}

func (z *powerSGD) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	z.v, z.sentQ = v, false
	if !z.cfg.WarmStart {
		kernels.Copy(s, z.q, z.first)
	}
	for i := range z.matrices {
		m := &z.matrices[i]
		kernels.MulRight(s, m.p, m.of(v), m.q, m.rank)
	}
	z.linears[0].X = z.p
	for i, w := range z.dense {
		z.linears[1+i].X = w.of(v)
	}
	return &z.ps, nil
}

func (z *powerSGD) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	if z.sentQ {
		z.finish(s, got.Mean, out)
		return nil, nil
	}
	for i, w := range z.dense {
		got.Many[1+i].Into(s, w.of(out))
		compress.Settle(s, w.of(z.v), w.of(out))
	}
	if len(z.matrices) == 0 {
		return nil, nil
	}
	kernels.Copy(s, z.p, got.Many[0].Mean)
	for i := range z.matrices {
		m := &z.matrices[i]
		kernels.Orthogonalise(s, m.p, m.rank)
		kernels.MulLeft(s, m.q, m.of(z.v), m.p, m.rank)
		if z.cfg.Residual == Local {
			kernels.SubOuter(s, m.of(z.v), m.p, m.q, m.rank) // while q is still this rank's own
		}
	}
	z.sentQ = true
	z.linears[0].X = z.q
	return &z.linears[0], nil
}

// finish makes the result of the mean Q, which the next step starts from.
func (z *powerSGD) finish(s kernels.Stream, q, out kernels.Buf[float32]) {
	kernels.Copy(s, z.q, q)
	for i := range z.matrices {
		m := &z.matrices[i]
		kernels.Outer(s, m.of(out), m.p, m.q, m.rank)
		if z.cfg.Residual == Mean {
			kernels.Add(s, m.of(z.v), -1, m.of(out))
		}
		// A zero column of P made the column of Q zero, which would stay so for ever.
		kernels.ReplaceDead(s, m.q, m.first, m.p, m.rank)
	}
}

func (z *powerSGD) State() []compress.NamedBuf {
	var all []compress.NamedBuf
	for i := range z.matrices {
		m := &z.matrices[i]
		all = append(all, compress.Remember(m.part.Name+"/q0", m.first))
		if z.cfg.WarmStart {
			all = append(all, compress.Remember(m.part.Name+"/q", m.q))
		}
	}
	return all
}
