package model

import "fmt"

// LSTMConfig is the shape of a language model. All are at least 1, Vocab at least 2.
type LSTMConfig struct {
	Vocab  int // distinct tokens
	Embed  int // size of a token's embedding
	Hidden int // size of each layer's state
	Layers int
}

func (c LSTMConfig) validate() error {
	if c.Vocab < 2 || c.Embed < 1 || c.Hidden < 1 || c.Layers < 1 {
		return fmt.Errorf("model: LSTM vocab %d, embed %d, hidden %d, layers %d, want at least 2, 1, 1, 1", c.Vocab, c.Embed, c.Hidden, c.Layers)
	}
	return nil
}

type languageModel struct {
	cfg         LSTMConfig
	embedding   *embedding
	layers      []*lstm
	decoder     *linear
	train, eval []lstmState // by layer

	params []*Param

	ids    []int32   // of the batch under way
	scores []float32 // T*batch x vocab, then their gradient
	dh     []float32 // gradient of a layer's output, T x batch x hidden
	dx     []float32 // gradient of a layer's input
}

// NewLSTM makes a language model: an embedding, LSTM layers and a linear decoder that predicts the
// token that follows each. The state after a batch is where the next begins, so row i of a batch
// continues row i of the one before. A batch of another size than the last begins with zeros.
func NewLSTM(cfg LSTMConfig, seed uint64) (Model, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &languageModel{
		cfg: cfg, embedding: newEmbedding("embedding", cfg.Vocab, cfg.Embed),
		train: make([]lstmState, cfg.Layers), eval: make([]lstmState, cfg.Layers),
	}
	rng := stream(seed, 2)
	m.embedding.init(rng)
	m.params = append(m.params, m.embedding.weight)
	in := cfg.Embed
	for i := range cfg.Layers {
		l := newLSTM(fmt.Sprintf("lstm.%d", i), in, cfg.Hidden)
		l.init(rng)
		m.layers = append(m.layers, l)
		m.params = append(m.params, l.wx, l.wh, l.bias)
		in = cfg.Hidden
	}
	m.decoder = newLinear("decoder", in, cfg.Vocab)
	m.decoder.init(rng)
	m.params = append(m.params, m.decoder.weight, m.decoder.bias)
	return m, nil
}

func (m *languageModel) Params() []*Param   { return m.params }
func (m *languageModel) Buffers() []*Buffer { return nil }
func (m *languageModel) Reset()             { resetAll(m.train) }
func (m *languageModel) ResetEval()         { resetAll(m.eval) }

func (m *languageModel) Carried() []float32 {
	var x []float32
	for _, s := range m.train {
		x = append(append(x, s.h...), s.c...)
	}
	return x
}

func (m *languageModel) SetCarried(x []float32) error {
	m.Reset()
	if len(x) == 0 {
		return nil
	}
	n := len(x) / (2 * len(m.train)) // of each h and c, batch x hidden
	if n*2*len(m.train) != len(x) || n%m.cfg.Hidden != 0 {
		return fmt.Errorf("model: carried state of %d numbers, want a multiple of %d", len(x), 2*len(m.train)*m.cfg.Hidden)
	}
	for i := range m.train {
		s := &m.train[i]
		s.h, s.c = append(s.h, x[:n]...), append(s.c, x[n:2*n]...)
		x = x[2*n:]
	}
	return nil
}

func resetAll(states []lstmState) {
	for i := range states {
		states[i].reset()
	}
}

func (m *languageModel) check(b Batch) error {
	switch {
	case b.Size < 1:
		return fmt.Errorf("model: batch size is %d, want at least 1", b.Size)
	case len(b.Tokens) == 0 || len(b.Tokens)%b.Size != 0:
		return fmt.Errorf("model: batch of %d texts has %d tokens, want a positive multiple", b.Size, len(b.Tokens))
	case len(b.Labels) != len(b.Tokens):
		return fmt.Errorf("model: batch has %d tokens and %d labels, want as many", len(b.Tokens), len(b.Labels))
	}
	if err := checkIDs("token", b.Tokens, m.cfg.Vocab); err != nil {
		return err
	}
	return checkIDs("label", b.Labels, m.cfg.Vocab)
}

// forward leaves the scores of the next tokens in m.scores.
func (m *languageModel) forward(b Batch, states []lstmState) {
	rows := len(b.Tokens)
	steps := rows / b.Size
	m.ids = b.Tokens
	m.embedding.forward(m.ids, m.layers[0].input(steps, b.Size))
	for i, l := range m.layers {
		l.forward(steps, b.Size, &states[i])
		to := m.decoder.input(rows)
		if i+1 < len(m.layers) {
			to = m.layers[i+1].input(steps, b.Size)
		}
		copy(to, l.output(steps, b.Size))
	}
	m.scores = grow(m.scores, rows*m.cfg.Vocab)
	m.decoder.forward(rows, m.scores)
}

func (m *languageModel) Step(b Batch, ready func(i int) error) (float64, error) {
	if err := m.check(b); err != nil {
		return 0, err
	}
	m.forward(b, m.train)
	rows := len(b.Tokens)
	loss, _ := crossEntropy(m.scores, m.cfg.Vocab, b.Labels, 1/float32(rows))
	if err := m.backward(rows/b.Size, b.Size, countdown{ready, len(m.params)}); err != nil {
		return 0, err
	}
	return loss / float64(rows), nil
}

func (m *languageModel) backward(steps, batch int, done countdown) error {
	rows := steps * batch
	m.dh = grow(m.dh, rows*m.cfg.Hidden)
	m.dx = grow(m.dx, rows*max(m.cfg.Hidden, m.cfg.Embed))
	m.decoder.backwardWeight(rows, m.scores)
	if err := done.final(2); err != nil {
		return err
	}
	m.decoder.backwardInput(rows, m.scores, m.dh)
	dh, dx := m.dh, m.dx
	for i := len(m.layers) - 1; i >= 0; i-- {
		m.layers[i].backwardWeight(steps, batch, dh)
		if err := done.final(3); err != nil {
			return err
		}
		m.layers[i].backwardInput(steps, batch, dx)
		dh, dx = dx, dh
	}
	m.embedding.backwardWeight(m.ids, dh)
	return done.final(1)
}

func (m *languageModel) Eval(b Batch) (loss float64, correct, count int) {
	if err := m.check(b); err != nil {
		panic(err)
	}
	m.forward(b, m.eval)
	loss, correct = crossEntropy(m.scores, m.cfg.Vocab, b.Labels, 1)
	return loss, correct, len(b.Labels)
}
