package shapes

import "fmt"

// AlexNet is torchvision's: 61,100,840 parameters, without the groups of the original of 2012, which has 60,965,224 (the 232.56 MiB
// of the DGC paper).
func AlexNet() Model {
	var l list
	l.affine("features.0", 64, 3, 11, 11)
	l.affine("features.3", 192, 64, 5, 5)
	l.affine("features.6", 384, 192, 3, 3)
	l.affine("features.8", 256, 384, 3, 3)
	l.affine("features.10", 256, 256, 3, 3)
	l.affine("classifier.1", 4096, 256*6*6)
	l.affine("classifier.4", 4096, 4096)
	l.affine("classifier.6", 1000, 4096)
	return Model{"alexnet", "torchvision's variant without groups", l, 597}
}

// VGG16 has 138,357,544 parameters (Simonyan and Zisserman 2014, configuration D).
func VGG16() Model {
	var l list
	in, layer := 3, 0
	for _, stage := range []struct{ convs, out int }{{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}} {
		for range stage.convs {
			l.affine(fmt.Sprintf("features.%d", layer), stage.out, in, 3, 3)
			in = stage.out
			layer += 2 // a convolution and its relu
		}
		layer++ // the pooling
	}
	l.affine("classifier.0", 4096, 512*7*7)
	l.affine("classifier.3", 4096, 4096)
	l.affine("classifier.6", 1000, 4096)
	return Model{"vgg16", "configuration D", l, 0}
}

// ResNet50 has 25,557,032 parameters (He et al. 2015): bottleneck blocks, projections where the shape changes.
func ResNet50() Model {
	var l list
	l.add("conv1.weight", 64, 3, 7, 7)
	l.norm("bn1", 64)
	in := 64
	for i, blocks := range []int{3, 4, 6, 3} {
		mid := 64 << i
		for b := range blocks {
			name := fmt.Sprintf("layer%d.%d", i+1, b)
			l.add(name+".conv1.weight", mid, in, 1, 1)
			l.norm(name+".bn1", mid)
			l.add(name+".conv2.weight", mid, mid, 3, 3)
			l.norm(name+".bn2", mid)
			l.add(name+".conv3.weight", 4*mid, mid, 1, 1)
			l.norm(name+".bn3", 4*mid)
			if b == 0 {
				l.add(name+".downsample.0.weight", 4*mid, in, 1, 1)
				l.norm(name+".downsample.1", 4*mid)
			}
			in = 4 * mid
		}
	}
	l.affine("fc", 1000, in)
	return Model{"resnet50", "for ImageNet", l, 277}
}

// ResNet110 is the network for CIFAR-10 that eval trains (He et al. 2015, section 4.2): shortcuts without parameters, 1.73 million
// parameters.
func ResNet110() Model {
	var l list
	l.add("conv1.weight", 16, 3, 3, 3)
	l.norm("bn1", 16)
	in := 16
	for i, out := range []int{16, 32, 64} {
		for b := range 18 {
			name := fmt.Sprintf("layer%d.%d", i+1, b)
			l.add(name+".conv1.weight", out, 3, 3, in)
			l.norm(name+".bn1", out)
			l.add(name+".conv2.weight", out, 3, 3, out)
			l.norm(name+".bn2", out)
			in = out
		}
	}
	l.affine("fc", 10, in)
	return Model{"resnet110", "for CIFAR-10, shortcuts without parameters", l, 0}
}
