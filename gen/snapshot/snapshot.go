// Package snapshot is what the generator read of a cluster, once: everything that a plan is made of, and nothing else.
// It can be kept in a file and read back, so that a plan can be made, reviewed and tested without the cluster.
package snapshot

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atewf/atewf/internal/substrate"
	"github.com/atewf/atewf/internal/versions"
)

const (
	// APIVersion and Kind head every snapshot file. A change that an older reader would misunderstand changes the version.
	APIVersion = "atewf.dev/v1"
	Kind       = "Snapshot"
)

// Snapshot is one reading of a cluster. Its lists are in the order of names, so that two snapshots can be compared.
type Snapshot struct {
	// Taken is when the reading was finished.
	Taken   time.Time
	Cluster Cluster
	// Namespace is where Agent Substrate was looked for.
	Namespace string
	// PoolsServed reports whether the API server knows WorkerPools at all.
	PoolsServed bool
	// Control says how the reading of the Control API went. Workers and Actors mean nothing where it was not read.
	Control Control
	// Lease is who rolls the cluster, nil when nobody ever did.
	Lease *Lease

	Nodes   []Node
	Pools   []Pool
	Atelets []DaemonSet
	Pods    []Pod // of all worker pools
	Workers []substrate.Worker
	Actors  []substrate.Actor
}

// Cluster names the cluster for people, as the kubeconfig does.
type Cluster struct {
	Name    string `json:"name,omitempty"`
	Context string `json:"context,omitempty"`
}

// String is the most telling of the names.
func (c Cluster) String() string {
	if c.Name != "" {
		return c.Name
	}
	return c.Context
}

// Control says whether the Control API was read, and otherwise why not.
type Control struct {
	Read bool   `json:"read"`
	Why  string `json:"why,omitempty"`
}

// Lease is the state of the Lease of the roll.
type Lease struct {
	// Holder is who holds it, see roll.Holder, "" for nobody. Node is the node in hand.
	Holder string `json:"holder,omitempty"`
	Node   string `json:"node,omitempty"`
	// Workflow is what has become of the holder. Why says why that is not known.
	Workflow Workflow `json:"workflow,omitempty"`
	Why      string   `json:"why,omitempty"`
}

// Workflow says what has become of a Workflow.
type Workflow string

const (
	// WorkflowLive is one that has not finished.
	WorkflowLive Workflow = "live"
	// WorkflowEnded is one that has finished or is gone.
	WorkflowEnded Workflow = "ended"
	// WorkflowUnknown is one that could not be read.
	WorkflowUnknown Workflow = ""
)

// Node is a node of Kubernetes.
type Node struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"`
	Taints        []corev1.Taint    `json:"taints,omitempty"`
	Ready         bool              `json:"ready,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
	// Stamp is what a roll wrote on the node, as it stands there; see roll.Stamp.
	Stamp   string    `json:"stamp,omitempty"`
	Created time.Time `json:"created,omitzero"`
}

// Version is the version label of the node, "" without one.
func (n Node) Version() string { return n.Labels[versions.Label] }

// Zone is the zone of the node, "" without one.
func (n Node) Zone() string { return n.Labels[corev1.LabelTopologyZone] }

// Pool is a WorkerPool.
type Pool struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
	Class     string            `json:"class,omitempty"` // sandbox class
	Image     string            `json:"image,omitempty"` // of the worker
	Pin       string            `json:"pin,omitempty"`   // the version its workers are pinned to
	Replicas  int64             `json:"replicas"`
	Ready     int64             `json:"ready"`
	// Spec is the whole spec, with the fields that nobody here knows.
	Spec json.RawMessage `json:"spec"`
}

// String names the pool for people.
func (p Pool) String() string { return p.Namespace + "/" + p.Name }

// DaemonSet is an atelet DaemonSet.
type DaemonSet struct {
	Name string `json:"name"`
	// Version is the value of its version label, "" without one. Nothing is ever told from its name.
	Version      string               `json:"version,omitempty"`
	Created      time.Time            `json:"created,omitzero"`
	Desired      int32                `json:"desired"`
	Ready        int32                `json:"ready"`
	NodeSelector map[string]string    `json:"nodeSelector,omitempty"`
	NodeAffinity *corev1.NodeSelector `json:"nodeAffinity,omitempty"` // what it requires of a node
	Tolerations  []corev1.Toleration  `json:"tolerations,omitempty"`
}

// Pod is a pod of a worker pool.
type Pod struct {
	Namespace   string          `json:"namespace"`
	Name        string          `json:"name"`
	UID         string          `json:"uid"`
	Pool        string          `json:"pool"`
	Pin         string          `json:"pin,omitempty"` // the version it is pinned to
	Node        string          `json:"node,omitempty"`
	Phase       corev1.PodPhase `json:"phase"`
	Ready       bool            `json:"ready,omitempty"`
	Terminating bool            `json:"terminating,omitempty"`
}

// Runs reports whether the pod is there to be reckoned with; one that succeeded or failed runs nothing any more.
func (p Pod) Runs() bool { return p.Phase != corev1.PodSucceeded && p.Phase != corev1.PodFailed }

// check reports what no cluster can be like.
func (s *Snapshot) check() error {
	seen := make(map[string]bool, len(s.Nodes))
	for i, n := range s.Nodes {
		if n.Name == "" {
			return fmt.Errorf("node %d of %d has no name", i+1, len(s.Nodes))
		}
		if seen[n.Name] {
			return fmt.Errorf("node %q is there twice", n.Name)
		}
		seen[n.Name] = true
	}
	return nil
}
