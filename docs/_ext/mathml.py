"""Maths as MathML, rendered while the documentation is built: no script, no font, no network."""

from xml.sax.saxutils import escape, quoteattr

from docutils import nodes
from latex2mathml.converter import convert
from latex2mathml.exceptions import MissingEndError
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)


def to_mathml(node, display):
    """MathML of the node's LaTeX; its source, with a warning, where LaTeX cannot be read."""
    latex = node.astext().strip()
    try:
        mathml = convert(latex, display=display)
    except (MissingEndError, ValueError, IndexError, TypeError, StopIteration) as error:
        reason = str(error) or type(error).__name__
        logger.warning("cannot render %r: %s", latex, reason, location=node, type="mathml")
        return f"<code>{escape(latex)}</code>"
    return mathml.replace("<math ", f"<math alttext={quoteattr(' '.join(latex.split()))} ", 1)


def visit_math(translator, node):
    translator.body.append(to_mathml(node, "inline"))
    raise nodes.SkipNode


def visit_math_block(translator, node):
    translator.body.append(translator.starttag(node, "div", CLASS="math-block"))
    if node.get("number"):
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(to_mathml(node, "block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
