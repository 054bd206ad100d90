// Package versions knows how Agent Substrate marks which of its versions an object belongs to.
package versions

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// Label is the key that nodes, atelet DaemonSets, their pods and the pins of worker pools carry. Its value is the
	// version itself; never derive it from a DaemonSet's name, because two versions can share a name suffix.
	Label = "ate.dev/substrate-version"

	// WorkerPoolLabel is the key that every worker pod carries; its value is the name of its WorkerPool.
	WorkerPoolLabel = "ate.dev/worker-pool"

	// AteletSelector selects the atelet DaemonSets and their pods in the Substrate namespace.
	AteletSelector = "app=atelet"

	// Namespace is where Agent Substrate is installed unless said otherwise.
	Namespace = "ate-system"
)

// Validate reports why v cannot be a version label. Installers reject such a version too, rather than change it.
func Validate(v string) error {
	if v == "" {
		return fmt.Errorf("the version is empty")
	}
	if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
		return fmt.Errorf("version %q cannot be a label value: %s", v, strings.Join(errs, "; "))
	}
	return nil
}

// PodPin is the version that a worker pod is pinned to by its node selector, "" when it is not pinned. The pin is
// rendered into the pod from its pool's template, so it says which side of a roll the pod is on even after the pool
// was changed or deleted.
func PodPin(pod *corev1.Pod) string {
	return pod.Spec.NodeSelector[Label]
}
