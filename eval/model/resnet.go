package model

import "fmt"

// block is two convolutions around a shortcut that has no parameters (He et al. 2015, option A):
// out = relu(bn2(conv2(relu(bn1(conv1(x))))) + x), where a block that halves the image takes every
// second row and column of x and has zeros for the channels that x lacks.
type block struct {
	conv1, conv2 *conv
	bn1, bn2     *batchNorm
}

func newBlock(name string, cin, cout, stride int, in grid) *block {
	c1 := newConv(name+".conv1", cin, cout, stride, in)
	return &block{
		conv1: c1, bn1: newBatchNorm(name+".bn1", cout, c1.out),
		conv2: newConv(name+".conv2", cout, cout, 1, c1.out), bn2: newBatchNorm(name+".bn2", cout, c1.out),
	}
}

func (k *block) forward(batch int, train bool, out []float32) {
	k.conv1.forward(batch, k.bn1.input(batch))
	normalise(k.bn1, batch, train, nil, k.conv2.input(batch))
	k.conv2.forward(batch, k.bn2.input(batch))
	normalise(k.bn2, batch, train, k.conv1.centre(batch), out)
}

func normalise(n *batchNorm, batch int, train bool, res, out []float32) {
	if train {
		n.forward(batch, res, out)
	} else {
		n.infer(batch, res, out)
	}
}

// backward takes g, the gradient of out, and writes dx. It overwrites g and tmp.
func (k *block) backward(batch int, out, g, tmp, dx []float32, done *countdown) error {
	k.bn2.backward(batch, out, g, tmp)
	if err := done.final(2); err != nil {
		return err
	}
	k.conv2.backwardWeight(batch, tmp)
	if err := done.final(1); err != nil {
		return err
	}
	k.conv2.backwardInput(batch, tmp, nil, dx)
	k.bn1.backward(batch, k.conv2.input(batch), dx, tmp)
	if err := done.final(2); err != nil {
		return err
	}
	k.conv1.backwardWeight(batch, tmp)
	if err := done.final(1); err != nil {
		return err
	}
	k.conv1.backwardInput(batch, tmp, g, dx)
	return nil
}

type resNet struct {
	classes, channels int
	grid              grid
	conv              *conv
	bn                *batchNorm
	blocks            []*block
	pool              *pool
	fc                *linear

	params  []*Param
	buffers []*Buffer

	scores    []float32    // batch x classes, then their gradient
	features  []float32    // gradient of the pooled features, batch x 64
	gradients [3][]float32 // of activations; the 16 channels of full size are the largest
}

// NewResNet makes a residual network for small images (He et al. 2015, section 4.2): depth 6n+2
// layers in three stages of 16, 32 and 64 channels, for size x size images with the given channels.
// Convolution weights are stored as output x 3 x 3 x input.
func NewResNet(depth, classes, channels, size int, seed uint64) (Model, error) {
	switch {
	case depth < 8 || (depth-2)%6 != 0:
		return nil, fmt.Errorf("model: ResNet depth is %d, want 6n+2, from 8 on", depth)
	case classes < 2:
		return nil, fmt.Errorf("model: ResNet classes is %d, want at least 2", classes)
	case channels < 1:
		return nil, fmt.Errorf("model: ResNet channels is %d, want at least 1", channels)
	case size < 4:
		return nil, fmt.Errorf("model: ResNet image size is %d, want at least 4", size)
	}
	m := &resNet{classes: classes, channels: channels, grid: grid{size, size}}
	rng := stream(seed, 1)
	addConv := func(c *conv) {
		c.init(rng)
		m.params = append(m.params, c.weight)
	}
	addNorm := func(n *batchNorm) {
		m.params = append(m.params, n.gamma, n.beta)
		m.buffers = append(m.buffers, n.mean, n.spread)
	}
	m.conv = newConv("conv1", channels, 16, 1, m.grid)
	m.bn = newBatchNorm("bn1", 16, m.grid)
	addConv(m.conv)
	addNorm(m.bn)
	cin, g := 16, m.grid
	for stage, cout := range []int{16, 32, 64} {
		for i := range (depth - 2) / 6 {
			stride := 1
			if stage > 0 && i == 0 {
				stride = 2
			}
			k := newBlock(fmt.Sprintf("layer%d.%d", stage+1, i), cin, cout, stride, g)
			cin, g = cout, k.conv1.out
			m.blocks = append(m.blocks, k)
			addConv(k.conv1)
			addNorm(k.bn1)
			addConv(k.conv2)
			addNorm(k.bn2)
		}
	}
	m.pool = &pool{channels: cin, grid: g}
	m.fc = newLinear("fc", cin, classes)
	m.fc.init(rng)
	m.params = append(m.params, m.fc.weight, m.fc.bias)
	return m, nil
}

func (m *resNet) Params() []*Param   { return m.params }
func (m *resNet) Buffers() []*Buffer { return m.buffers }
func (m *resNet) Reset()             {}
func (m *resNet) ResetEval()         {}
func (m *resNet) Carried() []float32 { return nil }
func (m *resNet) SetCarried(x []float32) error {
	if len(x) != 0 {
		return fmt.Errorf("model: carried state of %d numbers for a network that carries none", len(x))
	}
	return nil
}

func (m *resNet) check(b Batch) error {
	image := m.channels * m.grid.h * m.grid.w
	switch {
	case b.Size < 1:
		return fmt.Errorf("model: batch size is %d, want at least 1", b.Size)
	case len(b.X) != b.Size*image:
		return fmt.Errorf("model: batch of %d images has %d values, want %d x %d", b.Size, len(b.X), b.Size, image)
	case len(b.Labels) != b.Size:
		return fmt.Errorf("model: batch of %d images has %d labels", b.Size, len(b.Labels))
	}
	return checkIDs("label", b.Labels, m.classes)
}

// output is where block i puts its result: the input of what comes next.
func (m *resNet) output(i, batch int) []float32 {
	if i+1 < len(m.blocks) {
		return m.blocks[i+1].conv1.input(batch)
	}
	return m.pool.input(batch)
}

// forward leaves the class scores in m.scores.
func (m *resNet) forward(b Batch, train bool) {
	m.load(b)
	m.conv.forward(b.Size, m.bn.input(b.Size))
	normalise(m.bn, b.Size, train, nil, m.output(-1, b.Size))
	for i, k := range m.blocks {
		k.forward(b.Size, train, m.output(i, b.Size))
	}
	m.scores = grow(m.scores, b.Size*m.classes)
	m.pool.forward(b.Size, m.fc.input(b.Size))
	m.fc.forward(b.Size, m.scores)
}

// load lays the images out as the first convolution wants them.
func (m *resNet) load(b Batch) {
	x := m.conv.input(b.Size)
	size, pixels := m.grid.size(b.Size), m.grid.h*m.grid.w
	for c := range m.channels {
		row := x[c*size:][:size]
		m.grid.zeroGaps(row, b.Size)
		for i := range b.Size {
			copy(m.grid.image(row, i), b.X[(i*m.channels+c)*pixels:][:pixels])
		}
	}
}

func (m *resNet) Step(b Batch, ready func(i int) error) (float64, error) {
	if err := m.check(b); err != nil {
		return 0, err
	}
	m.forward(b, true)
	loss, _ := crossEntropy(m.scores, m.classes, b.Labels, 1/float32(b.Size))
	if err := m.backward(b.Size, countdown{ready, len(m.params)}); err != nil {
		return 0, err
	}
	return loss / float64(b.Size), nil
}

func (m *resNet) backward(batch int, done countdown) error {
	for i := range m.gradients {
		m.gradients[i] = grow(m.gradients[i], 16*m.grid.size(batch))
	}
	g, tmp, dx := m.gradients[0], m.gradients[1], m.gradients[2]

	m.fc.backwardWeight(batch, m.scores)
	if err := done.final(2); err != nil {
		return err
	}
	m.features = grow(m.features, batch*m.fc.in)
	m.fc.backwardInput(batch, m.scores, m.features)
	m.pool.backward(batch, m.features, g)
	for i := len(m.blocks) - 1; i >= 0; i-- {
		if err := m.blocks[i].backward(batch, m.output(i, batch), g, tmp, dx, &done); err != nil {
			return err
		}
		g, dx = dx, g
	}
	m.bn.backward(batch, m.output(-1, batch), g, tmp)
	if err := done.final(2); err != nil {
		return err
	}
	m.conv.backwardWeight(batch, tmp)
	return done.final(1)
}

func (m *resNet) Eval(b Batch) (loss float64, correct, count int) {
	if err := m.check(b); err != nil {
		panic(err)
	}
	m.forward(b, false)
	loss, correct = crossEntropy(m.scores, m.classes, b.Labels, 1)
	return loss, correct, b.Size
}
